from hookline.evals.verdicts import Path
from .stage import GoogleAdkStage
PATHS = [Path("run", GoogleAdkStage()), Path("sub-agent", GoogleAdkStage(), depth=1), Path("sub-agent of a sub-agent", GoogleAdkStage(), depth=2)][:1 if "openai_agents" == "fastmcp" else 3]
