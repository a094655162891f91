package rpc

import (
	"maps"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// enum finds the number of a domain word in a generated table: 0 for none, and
// -1, which no table has, for a word that is not in it, so that it is refused
// where it is validated and never taken for the default.
func enum[E ~int32, S ~string](numbers map[string]int32, word S) E {
	if word == "" {
		return 0
	}
	if n, ok := numbers[string(word)]; ok && n != 0 {
		return E(n)
	}
	return -1
}

// word finds the domain word of a number: "" for 0, and the number itself where
// the table has none.
func word[S ~string, E ~int32](names map[int32]string, number E) S {
	if number == 0 {
		return ""
	}
	if name, ok := names[int32(number)]; ok {
		return S(name)
	}
	return S(strconv.Itoa(int(number)))
}

func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func instant(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

func span(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// each translates a slice; empty stays nil, so that a round trip changes nothing.
func each[A, B any](in []A, translate func(A) B) []B {
	if len(in) == 0 {
		return nil
	}
	out := make([]B, len(in))
	for i, a := range in {
		out[i] = translate(a)
	}
	return out
}

func texts(in map[string]string) map[string]string {
	if len(in) == 0 {
		return nil
	}
	out := make(map[string]string, len(in))
	for key, value := range in {
		out[text(key)] = text(value)
	}
	return out
}

// filled returns nil for an empty map, which the wire cannot tell from none.
func filled(in map[string]string) map[string]string {
	if len(in) == 0 {
		return nil
	}
	return maps.Clone(in)
}
