package spool

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

// How often a follower looks without having been woken: where a Notifier
// watches, for what it cannot see (an instance that ended); where none does,
// for everything.
const (
	pollWatched = 500 * time.Millisecond
	pollBlind   = 50 * time.Millisecond
)

// Notifier wakes the followers of any number of spools through one inotify
// instance, of which a user has few. It only ever hints: followers look again
// by themselves too (trap T21). A nil Notifier never wakes anyone.
type Notifier struct {
	watcher *fsnotify.Watcher
	done    chan struct{}

	mu   sync.Mutex
	subs map[string]map[*subscription]struct{} // by directory
}

// NewNotifier starts one; Close ends it.
func NewNotifier() (*Notifier, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("spool: watch: %w", err)
	}
	n := &Notifier{watcher: watcher, done: make(chan struct{}), subs: map[string]map[*subscription]struct{}{}}
	go n.run()
	return n, nil
}

// Close ends it; followers go on by looking at intervals.
func (n *Notifier) Close() error {
	err := n.watcher.Close()
	<-n.done
	return err
}

func (n *Notifier) run() {
	defer close(n.done)
	for {
		select {
		case event, ok := <-n.watcher.Events:
			if !ok {
				return
			}
			n.wake(filepath.Dir(event.Name))
		case err, ok := <-n.watcher.Errors:
			if !ok {
				return
			}
			if errors.Is(err, fsnotify.ErrEventOverflow) {
				n.wakeAll()
			}
		}
	}
}

func (n *Notifier) wake(dir string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for s := range n.subs[dir] {
		s.wake()
	}
}

func (n *Notifier) wakeAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, subs := range n.subs {
		for s := range subs {
			s.wake()
		}
	}
}

// subscription is one follower's interest in one directory.
type subscription struct {
	notifier *Notifier
	dir      string
	woken    chan struct{}
	poll     time.Duration
}

func (s *subscription) wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// subscribe never fails: without a watch the follower looks more often. A
// directory that the guest replaced by a link costs needless wakes, no more.
func (n *Notifier) subscribe(dir string) *subscription {
	s := &subscription{notifier: n, dir: filepath.Clean(dir), woken: make(chan struct{}, 1), poll: pollBlind}
	if n == nil {
		return s
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.subs[s.dir] == nil {
		if err := n.watcher.Add(s.dir); err != nil {
			s.notifier = nil
			return s
		}
		n.subs[s.dir] = map[*subscription]struct{}{}
	}
	n.subs[s.dir][s] = struct{}{}
	s.poll = pollWatched
	return s
}

func (s *subscription) close() {
	if s.notifier == nil {
		return
	}
	n := s.notifier
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.subs[s.dir], s)
	if len(n.subs[s.dir]) == 0 {
		delete(n.subs, s.dir)
		// It fails only where the directory, and its watch with it, is gone.
		_ = n.watcher.Remove(s.dir)
	}
}
