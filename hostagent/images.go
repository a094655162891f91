package hostagent

import (
	"context"
	"sync"

	"github.com/holdfast-dev/holdfast"
)

// preparations shares the preparing of an image among the instances that wait
// for it, and ends it when none does any more.
type preparations struct {
	images Images
	base   context.Context // outlives every caller

	mu      sync.Mutex
	running map[wantedImage]*preparation
	group   sync.WaitGroup
}

// wantedImage is a reference, and the id of what it has to be; "": whatever it is.
type wantedImage struct{ ref, id string }

type preparation struct {
	done    chan struct{}
	cancel  context.CancelFunc
	waiting int
	told    map[*func(string)]struct{} // who hears of progress
	last    string
	image   holdfast.BaseImage
	err     error
}

// ensure waits until the image is there, or until ctx ends.
func (p *preparations) ensure(ctx context.Context, want wantedImage, progress func(string)) (holdfast.BaseImage, error) {
	one := p.join(want, &progress)
	defer p.leave(want, one, &progress)
	select {
	case <-one.done:
		return one.image, one.err
	case <-ctx.Done():
		return holdfast.BaseImage{}, context.Cause(ctx)
	}
}

func (p *preparations) join(want wantedImage, progress *func(string)) *preparation {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.running[want]
	if one == nil {
		ctx, cancel := context.WithCancel(p.base)
		one = &preparation{done: make(chan struct{}), cancel: cancel, told: map[*func(string)]struct{}{}}
		p.running[want] = one
		p.group.Add(1)
		go p.run(ctx, want, one)
	}
	one.waiting++
	one.told[progress] = struct{}{}
	if one.last != "" {
		(*progress)(one.last)
	}
	return one
}

func (p *preparations) leave(want wantedImage, one *preparation, progress *func(string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one.waiting--
	delete(one.told, progress)
	if one.waiting > 0 {
		return
	}
	one.cancel()
	if p.running[want] == one {
		delete(p.running, want) // who comes now begins anew
	}
}

func (p *preparations) run(ctx context.Context, want wantedImage, one *preparation) {
	defer p.group.Done()
	image, err := p.images.Ensure(ctx, want.ref, want.id, func(text string) { p.tell(one, text) })
	p.mu.Lock()
	defer p.mu.Unlock()
	one.image, one.err = image, err
	if p.running[want] == one {
		delete(p.running, want)
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
