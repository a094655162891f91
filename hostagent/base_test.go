package hostagent

import (
	"context"
	"maps"
	"testing"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
)

func (b *bench) bundle() runtime.Bundle {
	b.driver.mu.Lock()
	defer b.driver.mu.Unlock()
	return b.driver.instances[refOf(1)].bundle
}

func (s *shelf) move() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moved = true
}

// contract: E1
func TestE1_AnInstancesOwnVariablesAreAboveThoseOfItsImage(t *testing.T) {
	b := start(t, newWorld(), t.TempDir(), newClock(), func(b *bench) {
		b.images.says = holdfast.ProcessDefaults{Env: map[string]string{"A": "image", "B": "image"}, Workdir: "/app", User: "node"}
	})
	b.ensure(b.level(1, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
	got := b.bundle().Guest
	if !maps.Equal(got.Env, map[string]string{"A": "1", "B": "image"}) || got.Workdir != "/app" || got.User != "node" {
		t.Errorf("its guest was given %+v", got.ProcessDefaults)
	}
	if b.images.says.Env["A"] != "image" {
		t.Error("the image itself was changed")
	}
}

// contract: E4. A copy says which image it is above, whatever the image's name means by
// then, and what is made of it boots above that one.
func TestE4_ACopyNamesTheImageThatItWasTakenAbove(t *testing.T) {
	d := newDepot(t)
	b := start(t, newWorld(), t.TempDir(), newClock(), withBlobs(d), func(b *bench) { b.config.Layers = pile{} })
	b.ensure(b.level(1, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
	b.images.move()
	b = b.restart(withBlobs(d), func(next *bench) { next.config.Layers, next.images.moved = pile{}, true })
	o := b.copied(b.copyLevel(1, holdfast.CheckpointPresent), holdfast.CopyPresent)
	if len(o.Layers) != 1 || o.Layers[0].Base != "first base" {
		t.Fatalf("the copy: %+v", o.Layers)
	}
	fork := start(t, newWorld(), t.TempDir(), newClock(), func(b *bench) { b.config.Layers, b.images.moved = pile{}, true })
	level := fork.level(1, 1, holdfast.DesiredRunning)
	level.Spec.Layers = o.Layers
	fork.ensure(level, holdfast.InstanceRunning)
	if got := fork.bundle().RootFS; got != "/images/base" {
		t.Errorf("the fork is above %s", got)
	}
	plain := start(t, newWorld(), t.TempDir(), newClock(), func(b *bench) { b.images.moved = true })
	plain.ensure(plain.level(1, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
	if got := plain.bundle().RootFS; got == "/images/base" {
		t.Error("what has no layers is above the image as it was")
	}
}

// contract: E4. An agent that died between preparing and recording the start may not
// know above which image it prepared: it prepares anew.
func TestE4_WhatWasPreparedAndNotRecordedIsPreparedAnew(t *testing.T) {
	died := false
	b := start(t, newWorld(), t.TempDir(), newClock(), func(b *bench) {
		b.driver.meet = func(_ context.Context, point string, _ holdfast.InstanceRef) error {
			if point == "after Prepare" && !died {
				died = true
				b.images.move()
				return context.Canceled
			}
			return nil
		}
	})
	level := b.level(1, 1, holdfast.DesiredRunning)
	if _, err := b.EnsureInstance(t.Context(), level); err == nil {
		t.Fatal("the attempt ended well")
	}
	b.ensure(level, holdfast.InstanceRunning)
	of := b.subject(refOf(1)).record
	if of.Base != "other base" || b.bundle().RootFS != "/images/base"+of.Base {
		t.Errorf("it runs above %s, and %q is recorded", b.bundle().RootFS, of.Base)
	}
}
