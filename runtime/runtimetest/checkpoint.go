package runtimetest

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/layer"
	"github.com/holdfast-dev/holdfast/runtime"
)

// says asks the guest and expects an answer.
func (b *bench) says(made runtime.Bundle, request, want string) {
	b.t.Helper()
	answer, err := b.ask(made, request, 10*time.Second)
	b.must(err, request)
	if !strings.HasPrefix(answer, want) || want == "" && answer != "" {
		b.t.Fatalf("%s: the guest says %q, want %q", request, answer, want)
	}
}

// checkpoint takes one, and unpacks it as a host does.
func (b *bench) checkpoint(made runtime.Bundle) (archive []byte, directory string) {
	b.t.Helper()
	var out bytes.Buffer
	b.must(b.driver.Checkpoint(b.t.Context(), made.Ref, &out), "checkpoint")
	directory = b.t.TempDir()
	_, err := layer.Unpack(b.t.Context(), directory, bytes.NewReader(out.Bytes()), layer.Overlay, layer.Limits{})
	b.must(err, "unpack")
	return out.Bytes(), directory
}

// fork runs a new instance above layers, the lowest first.
func (b *bench) fork(layers ...string) runtime.Bundle {
	b.t.Helper()
	made := b.bundle()
	made.Layers = layers
	b.must(b.driver.Prepare(b.t.Context(), made), "prepare a fork")
	b.must(b.driver.Start(b.t.Context(), made.Ref), "start a fork")
	b.nonce(made)
	return made
}

func checkpoints(t *testing.T, b *bench) {
	source := b.running()
	b.says(source, "write home/agent/work all of it", "done")
	archive, directory := b.checkpoint(source)

	entries := tar.NewReader(bytes.NewReader(archive))
	for {
		h, err := entries.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		b.must(err, "read the layer")
		name := strings.Trim(h.Name, "/")
		if slices.Contains([]string{"etc/hosts", "etc/hostname", "etc/resolv.conf"}, name) || strings.HasPrefix(name, ".holdfast") || strings.HasPrefix(name, "run/holdfast") {
			t.Errorf("the layer has %s of its boot", name)
		}
		if h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeDir && h.Typeflag != tar.TypeSymlink {
			t.Errorf("the layer has %s, of the kind %q", name, h.Typeflag)
		}
	}
	identity := []string{secret, base64.StdEncoding.EncodeToString([]byte(secret)), string(source.Ref.Instance)}
	if status, err := b.driver.Inspect(t.Context(), source.Ref); err != nil || status.Address == "" {
		t.Fatalf("inspect: %+v, %v", status, err)
	} else {
		identity = append(identity, status.Address)
	}
	for _, own := range identity {
		if bytes.Contains(archive, []byte(own)) {
			t.Errorf("the layer has %q of its boot in it", own)
		}
	}
	if data, err := os.ReadFile(filepath.Join(directory, "home/agent/work")); err != nil || string(data) != "all of it" {
		t.Errorf("the layer has %q, %v", data, err)
	}
}

func forks(t *testing.T, b *bench) {
	source := b.running()
	b.says(source, "write home/work of the source", "done")
	b.says(source, "write home/gone soon removed", "done")
	_, first := b.checkpoint(source)
	b.says(source, "write home/work changed after", "done")

	one, other := b.fork(first), b.fork(first)
	if b.nonce(one) == b.nonce(other) || b.nonce(one) == b.nonce(source) {
		t.Fatal("a fork is its source's boot")
	}
	b.says(one, "read home/work", "content of the source")
	b.says(one, "write home/work of the first fork", "done")
	b.says(one, "remove home/gone", "done")
	b.says(other, "read home/work", "content of the source")
	b.says(other, "read home/gone", "content soon removed")
	b.says(source, "read home/work", "content changed after")

	_, second := b.checkpoint(one)
	b.must(b.driver.Stop(t.Context(), one.Ref), "stop")
	b.must(b.driver.Stop(t.Context(), source.Ref), "stop")
	grandchild := b.fork(first, second)
	b.says(grandchild, "read home/work", "content of the first fork")
	b.says(grandchild, "read home/gone", "error")
	b.says(other, "read home/work", "content of the source")
	b.restart()
	b.says(grandchild, "read home/work", "content of the first fork")
}

// observing looks while a layer is read from the driver.
type observing struct {
	io.Writer
	look func() error
	once bool
}

func (o *observing) Write(p []byte) (int, error) {
	if !o.once {
		o.once = true
		if err := o.look(); err != nil {
			return 0, err
		}
	}
	return o.Writer.Write(p)
}

func standingStill(t *testing.T, b *bench) {
	made := b.running()
	b.says(made, "write work "+strings.Repeat("x", 4000), "done")
	during := &observing{Writer: io.Discard, look: func() error {
		status, err := b.driver.Inspect(t.Context(), made.Ref)
		if err != nil || status.Phase != runtime.PhaseRunning {
			return fmt.Errorf("inspect: %s, %w", status.Phase, err)
		}
		if all, err := b.driver.List(t.Context()); err != nil || len(all) != 1 || all[0].Phase != runtime.PhaseRunning {
			return fmt.Errorf("list: %v, %w", all, err)
		}
		if answer, err := b.ask(made, "nonce", 300*time.Millisecond); err == nil {
			return fmt.Errorf("the guest answers %q meanwhile", answer)
		}
		return nil
	}}
	b.must(b.driver.Checkpoint(t.Context(), made.Ref, during), "checkpoint")
	b.nonce(made)

	full := errors.New("the disk is full")
	err := b.driver.Checkpoint(t.Context(), made.Ref, &observing{Writer: io.Discard, look: func() error { return full }})
	if !errors.Is(err, full) {
		t.Fatalf("a writer that fails: %v", err)
	}
	b.phase(made, runtime.PhaseRunning)
	b.nonce(made)

	ctx, cancel := context.WithCancel(t.Context())
	err = b.driver.Checkpoint(ctx, made.Ref, &observing{Writer: io.Discard, look: func() error { cancel(); return ctx.Err() }})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("a caller that leaves: %v", err)
	}
	b.phase(made, runtime.PhaseRunning)
	b.nonce(made)

	b.must(b.driver.Suspend(t.Context(), made.Ref), "suspend")
	b.must(b.driver.Checkpoint(t.Context(), made.Ref, io.Discard), "checkpoint of what is suspended")
	b.phase(made, runtime.PhaseSuspended)
	if answer, err := b.ask(made, "nonce", 300*time.Millisecond); err == nil {
		t.Fatalf("a checkpoint woke what was suspended: it answers %q", answer)
	}
	b.must(b.driver.Resume(t.Context(), made.Ref), "resume")
	b.nonce(made)
}

func onlyTheLiving(t *testing.T, b *bench) {
	made := b.bundle()
	b.refused(b.driver.Checkpoint(t.Context(), made.Ref, io.Discard), "checkpoint of what is absent")
	b.must(b.driver.Prepare(t.Context(), made), "prepare")
	if err := b.driver.Checkpoint(t.Context(), made.Ref, io.Discard); err == nil {
		t.Fatal("a checkpoint was taken of what never started")
	}
	b.phase(made, runtime.PhasePrepared)
	b.must(b.driver.Start(t.Context(), made.Ref), "start")
	b.nonce(made)
	if _, err := b.ask(made, "exit", 5*time.Second); err != nil {
		t.Log("cut off:", err)
	}
	b.must(b.driver.Wait(t.Context(), made.Ref), "wait")
	b.refused(b.driver.Checkpoint(t.Context(), made.Ref, io.Discard), "checkpoint of what exited")
	b.phase(made, runtime.PhaseExited)
}
