from hookline.evals.verdicts import Path
from .stage import AgentFrameworkStage
PATHS = [Path("run", AgentFrameworkStage()), Path("sub-agent", AgentFrameworkStage(), depth=1), Path("sub-agent of a sub-agent", AgentFrameworkStage(), depth=2)][:1 if "agent_framework" == "fastmcp" else 3]
