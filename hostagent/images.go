package hostagent

import (
	"context"
	"sync"
)

// preparations shares the preparing of an image among the instances that wait
// for it, and ends it when none does any more.
type preparations struct {
	images Images
	base   context.Context // outlives every caller

	mu      sync.Mutex
	running map[string]*preparation
	group   sync.WaitGroup
}

type preparation struct {
	done    chan struct{}
	cancel  context.CancelFunc
	waiting int
	told    map[*func(string)]struct{} // who hears of progress
	last    string
	rootFS  string
	err     error
}

// ensure waits until the image is there, or until ctx ends.
func (p *preparations) ensure(ctx context.Context, ref string, progress func(string)) (string, error) {
	one := p.join(ref, &progress)
	defer p.leave(ref, one, &progress)
	select {
	case <-one.done:
		return one.rootFS, one.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

func (p *preparations) join(ref string, progress *func(string)) *preparation {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.running[ref]
	if one == nil {
		ctx, cancel := context.WithCancel(p.base)
		one = &preparation{done: make(chan struct{}), cancel: cancel, told: map[*func(string)]struct{}{}}
		p.running[ref] = one
		p.group.Add(1)
		go p.run(ctx, ref, one)
	}
	one.waiting++
	one.told[progress] = struct{}{}
	if one.last != "" {
		(*progress)(one.last)
	}
	return one
}

func (p *preparations) leave(ref string, one *preparation, progress *func(string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one.waiting--
	delete(one.told, progress)
	if one.waiting > 0 {
		return
	}
	one.cancel()
	if p.running[ref] == one {
		delete(p.running, ref) // who comes now begins anew
	}
}

func (p *preparations) run(ctx context.Context, ref string, one *preparation) {
	defer p.group.Done()
	rootFS, err := p.images.Ensure(ctx, ref, func(text string) { p.tell(one, text) })
	p.mu.Lock()
	defer p.mu.Unlock()
	one.rootFS, one.err = rootFS, err
	if p.running[ref] == one {
		delete(p.running, ref)
	}
	close(one.done)
}

func (p *preparations) tell(one *preparation, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one.last = text
	for progress := range one.told {
		(*progress)(text)
	}
}
