package operation

import "crypto/rand"

// NewHolder names one attempt: the process, for people, and a random part, so that no two attempts share a name even
// within a process, and none takes an earlier one's claim for its own (trap T13).
func NewHolder(process string) string { return process + "/" + rand.Text() }
