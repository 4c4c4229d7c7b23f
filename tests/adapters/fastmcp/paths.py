from hookline.evals.verdicts import Path
from .stage import FastMCPStage
PATHS = [Path("run", FastMCPStage()), Path("sub-agent", FastMCPStage(), depth=1), Path("sub-agent of a sub-agent", FastMCPStage(), depth=2)][:1 if "fastmcp" == "fastmcp" else 3]
