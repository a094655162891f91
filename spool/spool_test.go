package spool_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/spool"
)

func newProcess(t *testing.T, dir string, limits spool.Limits) (holdfast.Process, *spool.Log) {
	t.Helper()
	w, err := spool.NewWriter(dir, limits)
	if err != nil {
		t.Fatal(err)
	}
	p := holdfast.Process{ID: holdfast.ProcessID(holdfast.IDs{}.New(holdfast.PrefixProcess)), Command: "x", State: holdfast.ProcessRunning}
	log, err := w.Begin(p)
	if err != nil {
		t.Fatal(err)
	}
	return p, log
}

// collect streams and checks that offsets fit together but for gaps.
func collect(t *testing.T, r *spool.Reader, in holdfast.ReadOutput) (out, errs []byte, chunks []holdfast.OutputChunk, p holdfast.Process) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	p, err := r.Stream(ctx, in, func(c holdfast.OutputChunk) error {
		if len(c.Data) == 0 || len(c.Data) > spool.MaxChunk {
			t.Errorf("chunk of %d bytes", len(c.Data))
		}
		chunks = append(chunks, c)
		if c.Stream == holdfast.Stderr {
			errs = append(errs, c.Data...)
		} else {
			out = append(out, c.Data...)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("stream: %v", err)
	}
	return out, errs, chunks, p
}

func write(t *testing.T, w *spool.StreamWriter, data []byte) {
	t.Helper()
	if n, err := w.Write(data); err != nil || n != len(data) {
		t.Fatalf("write: %d, %v", n, err)
	}
}

// pattern's byte at any offset tells the offset's lower part.
func pattern(from, length int64) []byte {
	b := make([]byte, length)
	for i := range b {
		b[i] = byte((from + int64(i)) * 31 % 251)
	}
	return b
}

// contract: A14
func TestA14_OutputIsReadByOffsetAcrossSegments(t *testing.T) {
	dir := t.TempDir()
	p, log := newProcess(t, dir, spool.Limits{Segment: 1000, Keep: 1 << 20})
	for at := int64(0); at < 10_007; at += 7 {
		write(t, log.Stream(holdfast.Stdout), pattern(at, 7))
	}
	write(t, log.Stream(holdfast.Stderr), []byte("\x00\xff\xfe binary \x80"))
	r := spool.Open(dir, spool.Options{})
	for _, offset := range []int64{0, 1, 999, 1000, 1001, 5500, 10_009, 10_010} {
		out, errs, _, got := collect(t, r, holdfast.ReadOutput{Process: p.ID, StdoutOffset: offset})
		if !bytes.Equal(out, pattern(offset, 10_010-offset)) {
			t.Errorf("from %d: %d bytes, wrong", offset, len(out))
		}
		if string(errs) != "\x00\xff\xfe binary \x80" {
			t.Errorf("stderr %q", errs)
		}
		if got.StdoutSize != 10_010 || got.StderrSize != int64(len(errs)) {
			t.Errorf("sizes %d, %d", got.StdoutSize, got.StderrSize)
		}
	}
	_, err := r.Stream(t.Context(), holdfast.ReadOutput{Process: p.ID, StdoutOffset: 10_011}, nil)
	if holdfast.CodeOf(err) != holdfast.OutOfRange {
		t.Errorf("beyond the end: %v", err)
	}
	_, err = r.Stream(t.Context(), holdfast.ReadOutput{Process: p.ID, StderrOffset: -1}, nil)
	if holdfast.CodeOf(err) != holdfast.InvalidArgument {
		t.Errorf("negative: %v", err)
	}
}

// contract: A14
func TestA14_OldOutputIsDroppedAndOffsetsStayRight(t *testing.T) {
	dir := t.TempDir()
	p, log := newProcess(t, dir, spool.Limits{Segment: 1000, Keep: 5000})
	write(t, log.Stream(holdfast.Stdout), pattern(0, 50_500))
	if kept := log.Stream(holdfast.Stdout).Kept(); kept > 5000 || kept < 4000 {
		t.Errorf("kept %d bytes", kept)
	}
	out, _, chunks, got := collect(t, spool.Open(dir, spool.Options{}), holdfast.ReadOutput{Process: p.ID, StdoutOffset: 17})
	first := chunks[0].Offset
	if first < 45_000 || got.StdoutSize != 50_500 || !bytes.Equal(out, pattern(first, 50_500-first)) {
		t.Errorf("first chunk at %d, size %d, %d bytes", first, got.StdoutSize, len(out))
	}
	if err := log.DropOutput(); err != nil {
		t.Fatal(err)
	}
	write(t, log.Stream(holdfast.Stdout), pattern(50_500, 10))
	out, _, chunks, _ = collect(t, spool.Open(dir, spool.Options{}), holdfast.ReadOutput{Process: p.ID})
	if chunks[0].Offset != 50_500 || !bytes.Equal(out, pattern(50_500, 10)) {
		t.Errorf("after the drop: %d bytes at %d", len(out), chunks[0].Offset)
	}
}

// contract: A14; trap T21: with a notifier and without one
func TestA14_FollowEndsWhenTheProcessEndedAndAllWasRead(t *testing.T) {
	notifier, err := spool.NewNotifier()
	if err != nil {
		t.Fatal(err)
	}
	defer notifier.Close()
	for name, n := range map[string]*spool.Notifier{"watching": notifier, "polling": nil} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			p, log := newProcess(t, dir, spool.Limits{Segment: 1000, Keep: 1 << 20})
			go func() {
				for at := int64(0); at < 100_000; at += 100 {
					if _, err := log.Stream(holdfast.Stdout).Write(pattern(at, 100)); err != nil {
						t.Error(err)
					}
				}
				p := p
				p.State, p.ExitCode = holdfast.ProcessExited, 7
				if err := log.Record(p); err != nil {
					t.Error(err)
				}
			}()
			out, _, _, got := collect(t, spool.Open(dir, spool.Options{Notifier: n}), holdfast.ReadOutput{Process: p.ID, Follow: true})
			if !bytes.Equal(out, pattern(0, 100_000)) || got.ExitCode != 7 || got.State != holdfast.ProcessExited || got.Lost {
				t.Errorf("%d bytes, %+v", len(out), got)
			}
		})
	}
}

func TestA14_WhatRanWhenItsInstanceEndedIsLost(t *testing.T) {
	dir := t.TempDir()
	p, log := newProcess(t, dir, spool.Limits{})
	write(t, log.Stream(holdfast.Stdout), []byte("last words"))
	r := spool.Open(dir, spool.Options{Alive: func() bool { return false }})
	out, _, _, got := collect(t, r, holdfast.ReadOutput{Process: p.ID, Follow: true})
	if string(out) != "last words" || got.State != holdfast.ProcessExited || !got.Lost {
		t.Errorf("%q, %+v", out, got)
	}
	p.State, p.ExitCode = holdfast.ProcessExited, 3
	if err := log.Record(p); err != nil {
		t.Fatal(err)
	}
	if got, err := r.Get(t.Context(), p.ID); err != nil || got.Lost || got.ExitCode != 3 {
		t.Errorf("ended before its instance: %+v, %v", got, err)
	}
}

func TestFollowStopsWithItsCallerAndWithItsYield(t *testing.T) {
	dir := t.TempDir()
	p, log := newProcess(t, dir, spool.Limits{})
	write(t, log.Stream(holdfast.Stdout), []byte("x"))
	ctx, cancel := context.WithCancel(t.Context())
	_, err := spool.Open(dir, spool.Options{}).Stream(ctx, holdfast.ReadOutput{Process: p.ID, Follow: true}, func(holdfast.OutputChunk) error { cancel(); return nil })
	if holdfast.CodeOf(err) != holdfast.Cancelled {
		t.Errorf("cancelled: %v", err)
	}
	broken := errors.New("broken")
	_, err = spool.Open(dir, spool.Options{}).Stream(t.Context(), holdfast.ReadOutput{Process: p.ID, Follow: true}, func(holdfast.OutputChunk) error { return broken })
	if !errors.Is(err, broken) {
		t.Errorf("yield's error: %v", err)
	}
}

func TestListIsByTimeAndEmptyBeforeTheFirst(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "later")
	r := spool.Open(dir, spool.Options{})
	if list, err := r.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("no directory: %v, %v", list, err)
	}
	if _, err := r.Get(t.Context(), holdfast.ProcessID(holdfast.IDs{}.New("pr"))); holdfast.CodeOf(err) != holdfast.NotFound {
		t.Errorf("no directory: %v", err)
	}
	var want []holdfast.ProcessID
	w, err := spool.NewWriter(dir, spool.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		id := holdfast.ProcessID(holdfast.IDs{Now: func() time.Time { return time.Unix(int64(i), 0) }}.New("pr"))
		if _, err := w.Begin(holdfast.Process{ID: id, State: holdfast.ProcessRunning}); err != nil {
			t.Fatal(err)
		}
		want = append(want, id)
	}
	list, err := r.List(t.Context())
	if err != nil || len(list) != len(want) {
		t.Fatalf("%d of %d, %v", len(list), len(want), err)
	}
	for i := range want {
		if list[i].ID != want[i] {
			t.Fatalf("%d: %s, want %s", i, list[i].ID, want[i])
		}
	}
	if err := w.Remove(want[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Get(t.Context(), want[0]); holdfast.CodeOf(err) != holdfast.NotFound {
		t.Errorf("removed: %v", err)
	}
}

// Bad input: what a guest's root can put into its spool harms no reader.
func TestHostileSpoolIsReadOnlyAsFarAsItIsSound(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("of the host"), 0o600); err != nil {
		t.Fatal(err)
	}
	record := func(id holdfast.ProcessID) []byte {
		return fmt.Appendf(nil, `{"id":%q,"state":"RUNNING"}`, id)
	}
	cases := map[string]func(t *testing.T, dir string, id holdfast.ProcessID){
		"record is a link": func(t *testing.T, dir string, id holdfast.ProcessID) {
			other := filepath.Join(t.TempDir(), "r")
			must(t, os.WriteFile(other, record(id), 0o600))
			must(t, os.Symlink(other, filepath.Join(dir, "record.json")))
		},
		"record is a pipe": func(t *testing.T, dir string, _ holdfast.ProcessID) {
			must(t, unix.Mkfifo(filepath.Join(dir, "record.json"), 0o600))
		},
		"record is a directory": func(t *testing.T, dir string, _ holdfast.ProcessID) {
			must(t, os.Mkdir(filepath.Join(dir, "record.json"), 0o700))
		},
		"record is nonsense": func(t *testing.T, dir string, _ holdfast.ProcessID) {
			must(t, os.WriteFile(filepath.Join(dir, "record.json"), []byte("{\x00"), 0o600))
		},
		"record is another's": func(t *testing.T, dir string, _ holdfast.ProcessID) {
			must(t, os.WriteFile(filepath.Join(dir, "record.json"), record("pr-00000000000000000000000000"), 0o600))
		},
		"record is padded": func(t *testing.T, dir string, id holdfast.ProcessID) {
			must(t, os.WriteFile(filepath.Join(dir, "record.json"), append(record(id), bytes.Repeat([]byte(" "), spool.MaxRecord)...), 0o600))
		},
		"record is huge": func(t *testing.T, dir string, id holdfast.ProcessID) {
			must(t, os.WriteFile(filepath.Join(dir, "record.json"), record(id), 0o600))
			must(t, os.Truncate(filepath.Join(dir, "record.json"), 1<<40))
		},
	}
	for name, plant := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			id := holdfast.ProcessID(holdfast.IDs{}.New("pr"))
			must(t, os.Mkdir(filepath.Join(dir, string(id)), 0o700))
			plant(t, filepath.Join(dir, string(id)), id)
			r := spool.Open(dir, spool.Options{})
			if _, err := r.Get(t.Context(), id); holdfast.CodeOf(err) != holdfast.FailedPrecondition {
				t.Errorf("Get: %v", err)
			}
			if list, err := r.List(t.Context()); err != nil || len(list) != 0 {
				t.Errorf("List: %v, %v", list, err)
			}
		})
	}
	t.Run("process is a link", func(t *testing.T) {
		dir, elsewhere := t.TempDir(), t.TempDir()
		id := holdfast.ProcessID(holdfast.IDs{}.New("pr"))
		must(t, os.WriteFile(filepath.Join(elsewhere, "record.json"), record(id), 0o600))
		must(t, os.Symlink(elsewhere, filepath.Join(dir, string(id))))
		if _, err := spool.Open(dir, spool.Options{}).Get(t.Context(), id); holdfast.CodeOf(err) != holdfast.NotFound {
			t.Errorf("Get: %v", err)
		}
	})
	t.Run("segments are links, pipes and sparse giants", func(t *testing.T) {
		dir := t.TempDir()
		id := holdfast.ProcessID(holdfast.IDs{}.New("pr"))
		sub := filepath.Join(dir, string(id))
		must(t, os.Mkdir(sub, 0o700))
		must(t, os.WriteFile(filepath.Join(sub, "record.json"), fmt.Appendf(nil, `{"id":%q,"state":"EXITED","stdout_size":-5}`, id), 0o600))
		must(t, os.Symlink(secret, filepath.Join(sub, fmt.Sprintf("stdout.%020d", 0))))
		must(t, unix.Mkfifo(filepath.Join(sub, fmt.Sprintf("stdout.%020d", 5)), 0o600))
		must(t, os.WriteFile(filepath.Join(sub, fmt.Sprintf("stdout.%020d", 100)), []byte("mine"), 0o600))
		must(t, os.WriteFile(filepath.Join(sub, "stdout.99999999999999999999"), []byte("overflow"), 0o600))
		must(t, os.WriteFile(filepath.Join(sub, "stdout.09223372036854775807"), []byte("overflow"), 0o600))
		must(t, os.WriteFile(filepath.Join(sub, "stderr.00000000000000000000"), nil, 0o600))
		must(t, os.Truncate(filepath.Join(sub, "stderr.00000000000000000000"), 1<<42))
		var out strings.Builder
		var stderr int64
		_, err := spool.Open(dir, spool.Options{}).Stream(t.Context(), holdfast.ReadOutput{Process: id, Follow: true}, func(c holdfast.OutputChunk) error {
			if c.Stream == holdfast.Stderr {
				stderr += int64(len(c.Data))
				return nil
			}
			out.Write(c.Data)
			return nil
		})
		if err != nil || out.String() != "mine" || stderr > 64<<20 {
			t.Errorf("stdout %q, %d bytes of stderr, %v", out.String(), stderr, err)
		}
	})
	t.Run("unknown and malformed ids", func(t *testing.T) {
		r := spool.Open(t.TempDir(), spool.Options{})
		for _, id := range []holdfast.ProcessID{"", "..", "../../etc", "pr-x", holdfast.ProcessID(strings.Repeat("a", 5000))} {
			if _, err := r.Get(t.Context(), id); holdfast.CodeOf(err) != holdfast.InvalidArgument {
				t.Errorf("%.20q: %v", id, err)
			}
		}
	})
}

func TestConsoleStreamsAndEndsWithItsInstance(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "console")
	must(t, os.WriteFile(path, []byte("console"), 0o600))
	var ended bool // seen and set by the stream's own goroutine
	var text strings.Builder
	err := spool.Open(dir, spool.Options{}).Console(t.Context(), 2, true, func() bool { return ended }, func(c holdfast.OutputChunk) error {
		if text.Len() == 0 {
			must(t, os.WriteFile(path, []byte("console and more"), 0o600))
		} else {
			ended = true
		}
		text.Write(c.Data)
		return nil
	})
	if err != nil || text.String() != "nsole and more" {
		t.Errorf("%q, %v", text.String(), err)
	}
	console := spool.ConsoleFile{Path: path}
	if tail, err := console.Tail(3); err != nil || string(tail) != "ore" {
		t.Errorf("tail %q, %v", tail, err)
	}
	if err := console.Stream(t.Context(), 17, false, nil); holdfast.CodeOf(err) != holdfast.OutOfRange {
		t.Errorf("beyond the end: %v", err)
	}
	must(t, os.Remove(path))
	if err := console.Stream(t.Context(), 0, false, nil); err != nil {
		t.Errorf("no console yet: %v", err)
	}
	must(t, os.Symlink("/etc/passwd", path))
	if tail, err := console.Tail(3); err == nil {
		t.Errorf("a link was followed: %q", tail)
	}
}

// A full disk loses output, counted, and never the process or later offsets.
func TestFullDiskLosesOutputAndKeepsOffsets(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "small")
	must(t, os.Mkdir(dir, 0o700))
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=128k"); err != nil {
		t.Skipf("needs root to mount a small file system: %v", err)
	}
	defer func() { must(t, unix.Unmount(dir, 0)) }()
	p, log := newProcess(t, dir, spool.Limits{Segment: 1 << 20, Keep: 4 << 20})
	out := log.Stream(holdfast.Stdout)
	for range 100 {
		if _, err := out.Write(pattern(0, 4096)); err != nil && !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
	if out.Size() != 100*4096 || out.Kept() == 0 || out.Kept() >= 128<<10 {
		t.Errorf("size %d, kept %d", out.Size(), out.Kept())
	}
	must(t, log.DropOutput())
	write(t, out, []byte("room again"))
	got, _, chunks, _ := collect(t, spool.Open(dir, spool.Options{}), holdfast.ReadOutput{Process: p.ID})
	if string(got) != "room again" || chunks[0].Offset != 100*4096 {
		t.Errorf("%q at %d", got, chunks[0].Offset)
	}
	must(t, out.Close())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
