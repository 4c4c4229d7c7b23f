"""The contract that every framework adapter keeps: the same scenes must give the same events."""

from hookline.evals.adapter_contract._contract import (
    CONTRACT,
    Clause,
    ContractError,
    Ran,
    Scene,
    Stage,
    Witness,
    check_contract,
)

__all__ = ["CONTRACT", "Clause", "ContractError", "Ran", "Scene", "Stage", "Witness", "check_contract"]
