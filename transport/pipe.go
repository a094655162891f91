package transport

import (
	"bytes"
	"io"
	"sync"
)

// pipeSize is how much a side may send ahead of the other's reading, in bytes.
const pipeSize = 64 << 10

// pipe is one direction of a connection: bytes in order, a bounded number of them on
// the way, an end, and a break that reaches both sides at once.
type pipe struct {
	mu     sync.Mutex
	moved  sync.Cond // something below changed
	buffer bytes.Buffer
	end    error // set by the writer: what the reader gets after the last byte
	broken error // what both sides get from now on
}

func (p *pipe) init() { p.moved.L = &p.mu }

// Read waits for at least one byte, the end or the break.
func (p *pipe) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case p.broken != nil:
			return 0, p.broken
		case p.buffer.Len() > 0:
			p.moved.Broadcast()
			return p.buffer.Read(b)
		case p.end != nil:
			return 0, p.end
		case len(b) == 0:
			return 0, nil
		}
		p.moved.Wait()
	}
}

// Write waits until all of b is on its way, or the break.
func (p *pipe) Write(b []byte) (n int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if p.broken != nil {
			return n, p.broken
		}
		if p.end != nil {
			return n, io.ErrClosedPipe
		}
		if len(b) == 0 {
			return n, nil
		}
		if part := min(len(b), pipeSize-p.buffer.Len()); part > 0 {
			// bytes.Buffer never fails to write.
			p.buffer.Write(b[:part])
			b, n = b[part:], n+part
			p.moved.Broadcast()
			continue
		}
		p.moved.Wait()
	}
}

// fill puts what there is room for into an empty pipe, which keeps it.
func (p *pipe) fill(content []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken == nil {
		p.buffer = *bytes.NewBuffer(content)
		p.moved.Broadcast()
	}
}

// finish is the writer's last word; the reader gets err after the bytes on the way.
func (p *pipe) finish(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.end == nil {
		p.end = err
	}
	p.moved.Broadcast()
}

// snap breaks the pipe for both sides and forgets what is on the way. The first
// break stands.
func (p *pipe) snap(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken == nil {
		p.broken = err
		p.buffer = bytes.Buffer{}
	}
	p.moved.Broadcast()
}
