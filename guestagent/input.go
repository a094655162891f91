package guestagent

import (
	"context"
	"strconv"

	"github.com/holdfast-dev/holdfast"
)

// input is a process's standard input or terminal, with how much it has taken.
type input struct {
	child  Child
	open   bool
	turn   chan struct{} // holds one; whose turn it is may use the rest
	taken  int64         // bytes
	closed bool
}

func (i *input) init(child Child, open bool) {
	i.child, i.open, i.turn = child, open, make(chan struct{}, 1)
}

// WriteProcessInput drops what was taken already, so that a repeat after a lost
// answer is safe, and refuses what would leave a gap. contract: A14
func (s *processes) WriteProcessInput(ctx context.Context, in holdfast.ProcessInput) (int64, error) {
	if err := in.Validate(); err != nil {
		return 0, err
	}
	p, err := s.find(in.Process)
	if err != nil {
		return 0, err
	}
	if !p.input.open {
		return 0, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonState,
			"the process has no standard input; start it with one").On(string(in.Process))
	}
	select {
	case p.input.turn <- struct{}{}:
	case <-ctx.Done():
		return 0, holdfast.AsError(ctx.Err())
	}
	defer func() { <-p.input.turn }()
	offset, err := p.input.write(ctx, in)
	if err != nil {
		return offset, holdfast.AsError(err).On(string(in.Process)).With("offset", strconv.FormatInt(offset, 10))
	}
	return offset, nil
}

func (i *input) write(ctx context.Context, in holdfast.ProcessInput) (int64, error) {
	data := in.Data
	if in.Offset > i.taken {
		return i.taken, holdfast.E(holdfast.OutOfRange, holdfast.ReasonBadField,
			"offset is %d, but the input stands at %d: send what lies between first", in.Offset, i.taken).With("field", "offset")
	}
	if in.Offset >= 0 {
		data = data[min(i.taken-in.Offset, int64(len(data))):]
	}
	if len(data) > 0 {
		if i.closed {
			return i.taken, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonEnded, "the input is closed")
		}
		n, err := i.child.WriteInput(ctx, data)
		i.taken += int64(n)
		if err != nil {
			return i.taken, err
		}
	}
	if in.Close && !i.closed {
		if err := i.child.CloseInput(); err != nil && holdfast.ReasonOf(err) != holdfast.ReasonEnded {
			return i.taken, err
		}
		i.closed = true
	}
	return i.taken, nil
}
