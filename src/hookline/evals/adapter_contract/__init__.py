"""The contract that every adapter of a framework keeps: the same scenes, the same events, written once."""

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
