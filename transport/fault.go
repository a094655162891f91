package transport

import (
	"net/http"
	"strconv"
	"time"
)

// Kind is what happens to one request.
type Kind int

// The kinds of faults. Drop, LoseAnswer and Hang look alike to a client that cannot
// see whether the handler ran; that is the point of having them apart.
const (
	None        Kind = iota // passes, after Fault.Delay
	Drop                    // fails before anything is sent
	LoseAnswer              // the handler runs to its end, the client sees a reset connection
	Duplicate               // sent twice, one after the other; the second answer is given
	Overlap                 // sent twice at the same time; the second answer is given
	CutRequest              // the connection breaks after Fault.Bytes of the request's body
	CutResponse             // the connection breaks after Fault.Bytes of the response's body
	Hang                    // nothing is sent and nothing comes back until the request's context ends
	Refuse                  // answered with Fault.Status; the handler does not run
	Replace                 // the handler runs to its end; answered with Fault.Status all the same
	kinds
)

// String names the kind, for traces.
func (k Kind) String() string {
	names := [kinds]string{"none", "drop", "lose answer", "duplicate", "overlap", "cut request", "cut response",
		"hang", "refuse", "replace"}
	if k < 0 || k >= kinds {
		return "kind " + strconv.Itoa(int(k))
	}
	return names[k]
}

// Fault is a kind with its measures. The zero value passes the request on.
//
// LoseAnswer, Duplicate, Overlap and Replace read one response to its end, so they
// fit calls whose response ends by itself; Duplicate and Overlap also read the whole
// request into memory first.
type Fault struct {
	Kind   Kind
	Delay  time.Duration // waited before anything else, with any kind
	Bytes  int64         // of CutRequest and CutResponse; a shorter body is not cut
	Status int           // of Refuse and Replace; 0 means 503
}

// Plan chooses the fault of a request. It is called once per request, from many
// goroutines, and reads no body. Two plans that must agree across runs derive the
// fault from what the request says, never from the order of asking.
type Plan func(*http.Request) Fault
