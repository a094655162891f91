package holdfast

import "time"

// Validate checks the form of every field, before any key is reserved (trap T7).
func (in CreateSession) Validate() error {
	return firstError(
		CheckRequestID("request_id", in.RequestID),
		in.checkOrigin(),
		checkText("name", in.Name, MaxName),
		checkIdle(in.Idle),
		checkRestart(in.Restart),
		checkEnv(in.Env),
		checkLabels(in.Labels),
		in.Resources.Validate(),
		checkOneOf("egress", in.Egress, "", EgressInternet, EgressNone),
		in.Repository.Validate(),
	)
}

// checkOrigin wants an environment, or a checkpoint alone.
func (in CreateSession) checkOrigin() error {
	if in.Source == "" {
		return checkEnvironment(in.Environment)
	}
	if in.Environment != "" {
		return bad("environment", "and source are both given: a fork has its environment from its checkpoint")
	}
	return CheckID("source", PrefixCheckpoint, string(in.Source))
}

func checkIdle(idle time.Duration) error {
	if idle != 0 && (idle < MinIdle || idle > MaxIdle) {
		return bad("idle", "is %s; it must be between %s and %s", idle, MinIdle, MaxIdle)
	}
	return nil
}

// Validate checks the form of the id and the condition.
func (in MutateSession) Validate() error {
	return firstError(
		CheckID("id", PrefixSession, string(in.ID)),
		checkNotNegative("if_generation", in.IfGeneration),
	)
}

// Validate checks the form of the id and the name.
func (in RenameSession) Validate() error {
	return firstError(
		CheckID("id", PrefixSession, string(in.ID)),
		checkText("name", in.Name, MaxName),
	)
}

// Validate checks the filters and the page.
func (in ListSessions) Validate() error {
	for _, state := range in.States {
		if _, known := SessionTransitions()[state]; !known {
			return bad("states", "has %q, which is no state of a session", shown(string(state)))
		}
	}
	return firstError(checkLabels(in.Labels), checkPage(in.PageSize, in.PageToken))
}
