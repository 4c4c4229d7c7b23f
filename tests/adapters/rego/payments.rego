package payments

import rego.v1

default verdict := {"decision": "deny", "reason": "unknown_receiver", "message": "Pay friends only."}

friends := {"Ada", "Grace"}

verdict := {
	"decision": "deny",
	"reason": "large_sum",
	"message": "More than 1000: may it be paid?",
	"approval": {},
} if {
	input.policy_target.value.to in friends
	input.policy_target.value.amount > 1000
} else := {
	"decision": "transform",
	"reason": "capped",
	"transform": {"path": "$target.amount", "value": 100},
} if {
	input.policy_target.value.to in friends
	input.policy_target.value.amount > 100
} else := {"decision": "allow"} if {
	input.policy_target.value.to in friends
}

default answer := {"decision": "allow"}

answer := {
	"decision": "transform",
	"reason": "no_names",
	"transform": {"path": "$target.content", "value": replace(input.policy_target.value.content, "Ada", "A.")},
} if {
	contains(input.policy_target.value.content, "Ada")
}
