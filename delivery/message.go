package delivery

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// Message is one event on its way.
type Message struct {
	ID   string // the event's id, the same on every attempt; see [NewID] and [DeriveID]
	Kind string // what happened, for example "instance.ready"; 1 to 128 visible ASCII characters
	Body []byte // the event's data, JSON; nothing means null
}

// envelope is what travels: the kind is inside it because the signature covers
// the body and no header but the id and the timestamp.
type envelope struct {
	Type string          `json:"type"`
	Data json.RawMessage `json:"data"`
}

// encode gives the bytes of every attempt of m.
func (m Message) encode() ([]byte, error) {
	if err := checkID(m.ID); err != nil {
		return nil, err
	}
	if err := checkKind(m.Kind); err != nil {
		return nil, err
	}
	data := m.Body
	if len(data) == 0 {
		data = []byte("null")
	}
	if !utf8.Valid(data) || !json.Valid(data) {
		return nil, fmt.Errorf("the body of delivery %s is not JSON", m.ID)
	}
	kind, err := json.Marshal(m.Kind)
	if err != nil {
		return nil, err
	}
	// Put together by hand: json.Marshal would rewrite the data's bytes.
	return fmt.Appendf(nil, `{"type":%s,"data":%s}`, kind, data), nil
}

// decode is the receiver's half of encode.
func decode(id string, payload []byte) (Message, error) {
	var e envelope
	if err := json.Unmarshal(payload, &e); err != nil {
		return Message{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if err := checkKind(e.Type); err != nil {
		return Message{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if len(e.Data) == 0 || bytes.Equal(e.Data, []byte("null")) {
		return Message{ID: id, Kind: e.Type}, nil
	}
	return Message{ID: id, Kind: e.Type, Body: e.Data}, nil
}

func checkKind(kind string) error {
	if kind == "" || len(kind) > 128 {
		return fmt.Errorf("a delivery's kind has 1 to 128 characters, this one has %d", len(kind))
	}
	for i := range len(kind) {
		if c := kind[i]; c <= ' ' || c > '~' {
			return fmt.Errorf("a delivery's kind is visible ASCII, this one is %q", kind)
		}
	}
	return nil
}
