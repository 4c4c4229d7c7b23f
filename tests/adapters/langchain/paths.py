from hookline.evals.verdicts import Path
from .stage import LangChainStage
PATHS = [Path("run", LangChainStage()), Path("sub-agent", LangChainStage(), depth=1), Path("sub-agent of a sub-agent", LangChainStage(), depth=2)][:1 if "langchain" == "fastmcp" else 3]
