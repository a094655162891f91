// Package blobtest is the suite that every blob.Store passes.
package blobtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-dev/holdfast/blob"
)

// Run holds a store against the promises of blob.Store. open returns an empty one.
func Run(t *testing.T, open func(t *testing.T) blob.Store) {
	for _, c := range []struct {
		name string
		test func(*testing.T, blob.Store)
	}{
		{"WhatWasPutIsRead", wholeObjects},
		{"NothingIsUnderAnUnknownKey", unknownKey},
		{"APutThatFailsLeavesWhatWas", failedPut},
		{"APutWhoseCallerLeavesLeavesNothing", cancelledPut},
		{"ASecondPutReplaces", replaced},
		{"DeletingIsRepeatable", deleted},
		{"ListsPageInOrder", listed},
		{"WrongKeysAreRefused", wrongKeys},
		{"PutsOfOneKeyAtOnceAreOneOfThem", racingPuts},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open(t)) })
	}
}

func noise(size int) []byte {
	out := make([]byte, size)
	source := rand.NewChaCha8([32]byte{byte(size)})
	if _, err := source.Read(out); err != nil {
		panic(err) // it never fails
	}
	return out
}

func sum(data []byte) string {
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:])
}

func put(t *testing.T, s blob.Store, key string, data []byte) blob.Info {
	t.Helper()
	info, err := s.Put(t.Context(), key, bytes.NewReader(data))
	if err != nil {
		t.Fatalf("put %s: %v", key, err)
	}
	return info
}

func read(t *testing.T, s blob.Store, key string) []byte {
	t.Helper()
	r, _, err := s.Get(t.Context(), key)
	if err != nil {
		t.Fatalf("get %s: %v", key, err)
	}
	data, err := io.ReadAll(r)
	if err = errors.Join(err, r.Close()); err != nil {
		t.Fatalf("read %s: %v", key, err)
	}
	return data
}

func wholeObjects(t *testing.T, s blob.Store) {
	for _, size := range []int{0, 1, 4096, 1<<20 + 3, 17 << 20} {
		key, data := fmt.Sprintf("sizes/%d.tar", size), noise(size)
		info := put(t, s, key, data)
		if info.Key != key || info.Size != int64(size) || info.SHA256 != sum(data) {
			t.Errorf("put of %d bytes answers %+v", size, info)
		}
		if got := read(t, s, key); !bytes.Equal(got, data) {
			t.Errorf("%d bytes were put, %d others read", size, len(got))
		}
		stat, err := s.Stat(t.Context(), key)
		if err != nil || stat.Size != int64(size) || stat.Written.IsZero() {
			t.Errorf("stat of %d bytes: %+v, %v", size, stat, err)
		}
	}
}

func unknownKey(t *testing.T, s blob.Store) {
	put(t, s, "there/below", []byte("x"))
	for _, key := range []string{"missing", "there", "there/below/it"} {
		if _, err := s.Stat(t.Context(), key); !errors.Is(err, blob.ErrNotFound) && key != "there/below/it" || err == nil {
			t.Errorf("stat %s: %v, want ErrNotFound", key, err)
		}
		r, _, err := s.Get(t.Context(), key)
		if err == nil {
			t.Errorf("get %s: no error, want ErrNotFound", key)
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// broken yields some of what it should, then an error.
type broken struct {
	r   io.Reader
	err error
}

func (b broken) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if err == io.EOF {
		err = b.err
	}
	return n, err
}

func failedPut(t *testing.T, s blob.Store) {
	cut := errors.New("the source was cut")
	if _, err := s.Put(t.Context(), "cut", broken{bytes.NewReader(noise(100_000)), cut}); !errors.Is(err, cut) {
		t.Errorf("a put whose source failed: %v, want its error", err)
	}
	if _, err := s.Stat(t.Context(), "cut"); !errors.Is(err, blob.ErrNotFound) {
		t.Errorf("after a put that failed: %v, want ErrNotFound", err)
	}
	put(t, s, "cut", []byte("first"))
	if _, err := s.Put(t.Context(), "cut", broken{bytes.NewReader(noise(100_000)), cut}); err == nil {
		t.Error("a second put whose source failed: no error")
	}
	if got := read(t, s, "cut"); string(got) != "first" {
		t.Errorf("after a second put that failed there is %d bytes of something else", len(got))
	}
}

func cancelledPut(t *testing.T, s blob.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	leaving := broken{bytes.NewReader(noise(50_000)), io.EOF}
	source := io.MultiReader(leaving, readerFunc(func([]byte) (int, error) { cancel(); return 0, nil }), bytes.NewReader(noise(50_000)))
	if _, err := s.Put(ctx, "left", source); err == nil {
		t.Error("a put whose caller left: no error")
	}
	if _, err := s.Stat(t.Context(), "left"); !errors.Is(err, blob.ErrNotFound) {
		t.Errorf("after that: %v, want ErrNotFound", err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) {
	n, err := f(p)
	if err == nil && n == 0 {
		err = io.EOF
	}
	return n, err
}

func replaced(t *testing.T, s blob.Store) {
	put(t, s, "twice", noise(10_000))
	put(t, s, "twice", []byte("second"))
	if got := read(t, s, "twice"); string(got) != "second" {
		t.Errorf("read %d bytes, want the second put", len(got))
	}
}

func deleted(t *testing.T, s blob.Store) {
	put(t, s, "a/b", []byte("x"))
	for range 2 {
		if err := s.Delete(t.Context(), "a/b"); err != nil {
			t.Errorf("delete: %v", err)
		}
	}
	if _, err := s.Stat(t.Context(), "a/b"); !errors.Is(err, blob.ErrNotFound) {
		t.Errorf("after a delete: %v, want ErrNotFound", err)
	}
	put(t, s, "a/b", []byte("again"))
	if got := read(t, s, "a/b"); string(got) != "again" {
		t.Errorf("read %q", got)
	}
}

func listed(t *testing.T, s blob.Store) {
	keys := []string{"ck/1/2", "ck/1/10", "ck/2/1", "ck-other", "layer/a", "ck/1.tar"}
	for _, k := range keys {
		put(t, s, k, []byte(k))
	}
	all := func(prefix string, limit int) (got []string) {
		for after := ""; ; {
			infos, next, err := s.List(t.Context(), prefix, after, limit)
			if err != nil {
				t.Fatalf("list %q: %v", prefix, err)
			}
			if len(infos) > limit {
				t.Fatalf("list %q: %d of at most %d", prefix, len(infos), limit)
			}
			for _, i := range infos {
				if i.Size != int64(len(i.Key)) {
					t.Errorf("%s has %d bytes", i.Key, i.Size)
				}
				got = append(got, i.Key)
			}
			if after = next; after == "" {
				return got
			}
		}
	}
	for _, prefix := range []string{"", "ck/", "ck/1", "ck/1/", "none/"} {
		var want []string
		for _, k := range keys {
			if strings.HasPrefix(k, prefix) {
				want = append(want, k)
			}
		}
		slices.Sort(want)
		for _, limit := range []int{1, 2, 100} {
			if got := all(prefix, limit); !slices.Equal(got, want) {
				t.Errorf("list %q by %d: %v, want %v", prefix, limit, got, want)
			}
		}
	}
}

func wrongKeys(t *testing.T, s blob.Store) {
	for _, key := range []string{"", "/a", "a/", "a//b", "../a", "a/../b", ".hidden", "a/.b", "a b", "a\x00b", "ü", strings.Repeat("k", blob.MaxKey+1)} {
		if _, err := s.Put(t.Context(), key, strings.NewReader("x")); err == nil {
			t.Errorf("put %q: no error", key)
		}
		if r, _, err := s.Get(t.Context(), key); err == nil {
			t.Errorf("get %q: no error (closing: %v)", key, r.Close())
		}
		if err := s.Delete(t.Context(), key); err == nil {
			t.Errorf("delete %q: no error", key)
		}
	}
}

func racingPuts(t *testing.T, s blob.Store) {
	const writers = 8
	var sums [writers]string
	var group sync.WaitGroup
	for i := range writers {
		data := noise(200_000 + i)
		sums[i] = sum(data)
		group.Go(func() {
			if _, err := s.Put(t.Context(), "raced", bytes.NewReader(data)); err != nil {
				t.Errorf("put: %v", err)
			}
		})
	}
	group.Wait()
	if got := sum(read(t, s, "raced")); !slices.Contains(sums[:], got) {
		t.Error("what is there is none of what was put")
	}
}
