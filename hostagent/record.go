package hostagent

import (
	"encoding/json"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// record is what this host durably knows of one incarnation.
type record struct {
	Ref        holdfast.InstanceRef   `json:"ref"`
	Generation int64                  `json:"generation"` // the highest level seen
	Desired    holdfast.Desired       `json:"desired"`    // what that level wants
	Spec       *holdfast.InstanceSpec `json:"spec,omitempty"`
	Base       string                 `json:"base,omitempty"` // id of the image that it boots from, once Started
	State      holdfast.InstanceState `json:"state"`
	MintedAt   time.Time              `json:"minted_at"`
	PlacedAt   time.Time              `json:"placed_at"`
	CreatedAt  time.Time              `json:"created_at"` // when the first level came

	// Started is written before the runtime is told to go: from then on this
	// incarnation never boots again (trap T49).
	Started   bool      `json:"started"`
	StartedAt time.Time `json:"started_at,omitzero"`
	BootID    string    `json:"boot_id,omitempty"` // of the host, when it started or resumed
	ReadyAt   time.Time `json:"ready_at,omitzero"` // when its guest first said so

	// Removing: a level wanted ABSENT. It is never taken back, whatever follows.
	Removing bool `json:"removing,omitempty"`
	// Ending is why it must end: decided, never taken back, and durable before
	// anything is given back. State becomes EXITED when everything is.
	Ending  *holdfast.Failure `json:"ending,omitempty"`
	Failure *holdfast.Failure `json:"failure,omitempty"`
	EndedAt time.Time         `json:"ended_at,omitzero"`

	TombstoneAt time.Time `json:"tombstone_at,omitzero"` // when it became ABSENT

	Ports   []holdfast.Port `json:"ports,omitempty"`
	Address string          `json:"address,omitempty"`

	// Orphan: the runtime had it and no level ever named it. It is never taken
	// for the current incarnation.
	Orphan bool `json:"orphan,omitempty"`
	// Quarantine is where the unreadable record is kept that this one replaces.
	Quarantine string `json:"quarantine,omitempty"`
}

// final reports that nothing will happen to the incarnation but its removal.
func (r record) final() bool {
	return r.State == holdfast.InstanceExited || r.State == holdfast.InstanceAbsent
}

// clone shares nothing that a change could reach.
func (r record) clone() record {
	r.Ports = append([]holdfast.Port(nil), r.Ports...)
	return r
}

// state is what a reader is told: what is being ended says so, although the last
// recorded fact is older.
func (r record) state() holdfast.InstanceState {
	if !r.final() && (r.Removing || r.Ending != nil) {
		return holdfast.InstanceStopping
	}
	return r.State
}

// sameSpec compares what was decoded, so that a field that a later version adds
// does not make an old level conflict with itself (trap T9).
func sameSpec(a, b *holdfast.InstanceSpec) (bool, error) {
	ra, err := json.Marshal(a)
	if err != nil {
		return false, err
	}
	rb, err := json.Marshal(b)
	return string(ra) == string(rb), err
}
