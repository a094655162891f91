package orchestrator

import (
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/operation"
)

// lifecycle.md, "Session", before its table: every state, every operation, unclaimed or
// claimed, issued or not, for each verb.
func TestLifecycleTableOfASession(t *testing.T) {
	now := time.UnixMicro(1_000_000)
	verbs := []holdfast.OperationKind{holdfast.OperationCreate, holdfast.OperationSuspend, holdfast.OperationResume, holdfast.OperationDelete}
	kinds := []holdfast.OperationKind{"", holdfast.OperationCreate, holdfast.OperationSuspend, holdfast.OperationResume, holdfast.OperationDelete, holdfast.OperationReplace}
	checked := 0
	for state := range holdfast.SessionTransitions() {
		for _, kind := range kinds {
			for _, how := range []string{"recorded", "issued", "claimed"} {
				for _, verb := range verbs {
					var pending *operation.Operation
					if kind != "" {
						pending = &operation.Operation{Kind: string(kind), State: operation.StatePending, Issued: how != "recorded"}
						if how == "claimed" {
							pending.ClaimExpires = now.Add(time.Second)
						}
					}
					got, want := decideSession(state, pending, now, verb), sessionTable(state, kind, how, verb)
					if got != want {
						t.Errorf("%s, %s %s, %s: %s, want %s", state, kind, how, verb, got, want)
					}
					checked++
				}
			}
		}
	}
	t.Logf("%d cells", checked)
}

// sessionTable is the same rule told another way: by who is in the way.
func sessionTable(state holdfast.SessionState, kind holdfast.OperationKind, how string, verb holdfast.OperationKind) verdict {
	pending, resting := kind != "", state == holdfast.SessionReady || state == holdfast.SessionSuspended
	switch {
	case verb == holdfast.OperationCreate:
		if !pending || state != holdfast.SessionWaiting && state != holdfast.SessionCreating {
			return verdictDone
		}
		return map[string]verdict{"recorded": verdictJoin, "issued": verdictJoin, "claimed": verdictHeld}[how]
	case verb == holdfast.OperationDelete && state == holdfast.SessionDeleted:
		return verdictDone
	case verb != holdfast.OperationDelete && !resting:
		if state == holdfast.SessionCreating && pending && how == "claimed" {
			return verdictHeld
		}
		return verdictRefuse
	case !pending:
		if verb == holdfast.OperationSuspend && state == holdfast.SessionSuspended || verb == holdfast.OperationResume && state == holdfast.SessionReady {
			return verdictDone
		}
		return verdictBegin
	case kind == verb:
		return map[string]verdict{"recorded": verdictJoin, "issued": verdictJoin, "claimed": verdictHeld}[how]
	case verb == holdfast.OperationDelete:
		return map[string]verdict{"recorded": verdictReplace, "issued": verdictUncertain, "claimed": verdictStop}[how]
	case how == "claimed":
		return verdictHeld
	case kind != holdfast.OperationSuspend && kind != holdfast.OperationResume:
		return verdictRefuse
	}
	return map[string]verdict{"recorded": verdictReplace, "issued": verdictUncertain}[how]
}

// What comes in which order, and what is left out (contract: A13).
func TestA13_TheStagesOfASessionsOperation(t *testing.T) {
	ready, frozen := holdfast.SandboxReady, holdfast.SandboxSuspended
	for _, c := range []struct {
		name string
		f    facts
		want stage
	}{
		{"waits for its build", facts{verb: holdfast.OperationCreate, waiting: true}, stageBuild},
		{"the create is its sandbox's", facts{verb: holdfast.OperationCreate, box: holdfast.SandboxCreating, boxed: holdfast.OperationCreate}, stageSandbox},
		{"suspend: the task first", facts{verb: holdfast.OperationSuspend, box: ready, task: true, hook: true, boxed: holdfast.OperationCheckpoint}, stageTask},
		{"suspend: then the checkpoint", facts{verb: holdfast.OperationSuspend, box: ready, hook: true, boxed: holdfast.OperationCheckpoint}, stageCheckpoint},
		{"suspend: then the hook", facts{verb: holdfast.OperationSuspend, box: ready, hook: true}, stageHook},
		{"suspend: then the sandbox", facts{verb: holdfast.OperationSuspend, box: ready}, stageDrive},
		{"suspend: then its operation", facts{verb: holdfast.OperationSuspend, box: ready, boxed: holdfast.OperationSuspend}, stageSandbox},
		{"suspend: there already", facts{verb: holdfast.OperationSuspend, box: frozen}, stageFinish},
		{"suspend over a resume that yielded", facts{verb: holdfast.OperationSuspend, box: frozen, boxed: holdfast.OperationResume}, stageDrive},
		{"suspend while it is replaced", facts{verb: holdfast.OperationSuspend, box: holdfast.SandboxCreating, boxed: holdfast.OperationReplace}, stageSandbox},
		{"resume", facts{verb: holdfast.OperationResume, box: frozen, hook: true}, stageDrive},
		{"resume: the hook when it runs", facts{verb: holdfast.OperationResume, box: ready, hook: true}, stageHook},
		{"resume: there", facts{verb: holdfast.OperationResume, box: ready}, stageFinish},
		{"resume waits for a checkpoint", facts{verb: holdfast.OperationResume, box: frozen, boxed: holdfast.OperationCheckpoint}, stageCheckpoint},
		{"delete without a sandbox", facts{verb: holdfast.OperationDelete}, stageFinish},
		{"delete never resumes first", facts{verb: holdfast.OperationDelete, box: frozen, hook: true, task: true}, stageDrive},
		{"delete: the task first", facts{verb: holdfast.OperationDelete, box: ready, hook: true, task: true}, stageTask},
		{"delete: the hook", facts{verb: holdfast.OperationDelete, box: ready, hook: true}, stageHook},
		{"delete of what failed", facts{verb: holdfast.OperationDelete, box: holdfast.SandboxFailed, hook: true, task: true}, stageDrive},
		{"delete while it is created", facts{verb: holdfast.OperationDelete, box: holdfast.SandboxCreating, boxed: holdfast.OperationCreate}, stageDrive},
		{"delete under way", facts{verb: holdfast.OperationDelete, box: holdfast.SandboxDeleting, boxed: holdfast.OperationDelete}, stageSandbox},
		{"delete done", facts{verb: holdfast.OperationDelete, box: holdfast.SandboxDeleted}, stageFinish},
	} {
		if got := nextStage(c.f); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
