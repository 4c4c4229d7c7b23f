from hookline.evals.verdicts import Path
from .stage import OpenAIStage
PATHS = [Path("run", OpenAIStage()), Path("sub-agent", OpenAIStage(), depth=1), Path("sub-agent of a sub-agent", OpenAIStage(), depth=2)][:1 if "openai_agents" == "fastmcp" else 3]
