from hookline.evals.verdicts import Path
from .stage import PydanticAIStage
PATHS = [Path("run", PydanticAIStage()), Path("sub-agent", PydanticAIStage(), depth=1), Path("sub-agent of a sub-agent", PydanticAIStage(), depth=2)][:1 if "pydantic_ai" == "fastmcp" else 3]
