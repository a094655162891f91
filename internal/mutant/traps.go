package mutant

// Trap is one way in which systems like this one break.
type Trap struct {
	Number int
	Text   string
	// Later says what of the trap needs something that is not built yet; "" when all
	// of it is here and seeded.
	Later string
}

// Traps are all of them. One without a seeded bug says in Later why it has none.
func Traps() []Trap {
	return []Trap{
		{1, "the answer to a create is lost after its commit", ""},
		{2, "the same request id with another payload", ""},
		{3, "the same request id after the delete", ""},
		{4, "request ids that are not scoped by project and method", ""},
		{5, "request rows purged before the resource is gone or the last late retry came", ""},
		{6, "a transient failure remembered as final", ""},
		{7, "authorization or validation after the key is reserved", ""},
		{8, "PostgreSQL at READ COMMITTED: a conflict's row read in the insert's own statement", ""},
		{9, "a new default breaks old retries", ""},
		{10, "bytes that are not canonical in a fingerprint", ""},
		{11, "an expired holder writes late", ""},
		{12, "the row is fenced, the runtime is not", ""},
		{13, "a process takes its own expired claim again while its old goroutine lives", ""},
		{14, "a process that was stopped past its claim", ""},
		{15, "an error path releases the successor's claim", ""},
		{16, "the dedupe row commits apart from the effect", ""},
		{17, "a 4xx for a resource not known yet", ""},
		{18, "polling by id skips rows that committed out of order", ""},
		{19, "a poison row blocks its batch", ""},
		{20, "dedupe kept for less time than a late retry may take", ""},
		{21, "a wake-up that relies on notification alone", ""},
		{22, "nested retries multiply", ""},
		{23, "pauses without jitter synchronise a fleet", ""},
		{24, "attempt 2 arrives while attempt 1 runs", ""},
		{25, "backoff overflows", ""},
		{26, "a sweep kills what a live attempt is creating", ""},
		{27, "a stale or failed read taken for gone", ""},
		{28, "overlapping sweeps act twice", ""},
		{29, "a full page of ineligible rows hides later ones", ""},
		{30, "everything overdue after a restart stampedes", ""},
		{31, "a deadline that each attempt pushes out", ""},
		{32, "unreachable taken for NOT_FOUND", ""},
		{33, "negative caching", ""},
		{34, "the repair overwrites a newer write", ""},
		{35, "a read storm on the authority", ""},
		{36, "a callback for a superseded generation", ""},
		{37, "a callback from the previous boot", ""},
		{38, "a superseded create finishes late and leaks its instance", ""},
		{39, "delete arrives before create", ""},
		{40, "the tombstone is gone when the late create arrives", ""},
		{41, "PostgreSQL's now() is the transaction's start", ""},
		{42, "clock steps and skew", ""},
		{43, "extension races eviction", ""},
		{44, "a partial file", ""},
		{45, "the process starts twice", ""},
		{46, "a context that is cancelled during the commit", ""},
		{47, "errors ignored on cleanup paths", ""},
		{48, "a group commit lets one member's failure sink or free the others, or answers before its commit", ""},
		{49, "a late or repeated RUNNING boots or places an incarnation twice", ""},
		{50, "a snapshot duplicates identity", "of a disk; no driver saves memory yet"},
		{51, "a suspend image is loaded twice", "no driver saves memory to disk yet"},
		{52, "a restored, failed-over or wrong database orders everything destroyed", ""},
		{53, "a decision at READ COMMITTED misses the row that a concurrent transaction inserts", ""},
	}
}
