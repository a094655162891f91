package hop

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// fill gives every field of v a value; zero leaves some out.
func fill(rnd *rand.Rand, v reflect.Value, zero float64) {
	if rnd.Float64() < zero {
		return
	}
	switch v.Kind() {
	case reflect.String:
		words := []string{"RUNNING", "in-0000", "http://host.internal:80/x?y=1", "a b", `q"uote`, "tab\t", "<&>", "é", "\xff", "b\\s"}
		if zero < 0 { // plain
			words = words[:4]
		}
		v.SetString(words[rnd.IntN(len(words))])
	case reflect.Int64, reflect.Int:
		v.SetInt(rnd.Int64() - rnd.Int64())
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(rnd, v.Elem(), zero)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(rnd, v.Index(0), zero)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("k"), reflect.ValueOf("v"))
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.UnixMicro(rnd.Int64N(1 << 52)).UTC()))
			return
		}
		for i := range v.NumField() {
			fill(rnd, v.Field(i), zero)
		}
	}
}

// check holds encode and unmarshal against encoding/json for one value.
func check[T any](t *testing.T, v T) {
	t.Helper()
	want, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	got, err := encode(&v)
	if err != nil || string(got) != string(want) {
		t.Fatalf("encode wrote\n%s, %v, want\n%s", got, err, want)
	}
	var read, expected T
	if err := json.Unmarshal(want, &expected); err != nil {
		t.Fatal(err)
	}
	if err := unmarshal(want, &read); err != nil || !reflect.DeepEqual(read, expected) {
		t.Fatalf("unmarshal of %s read\n%+v, %v, want\n%+v", want, read, err, expected)
	}
}

// A field that is added to a level or an observation and forgotten here is missed by this test.
func TestPlainMessagesAreWhatEncodingJSONMakesOfThem(t *testing.T) {
	for seed := range uint64(3000) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var l holdfast.Level
		var o holdfast.Observation
		zero := float64(seed%4) / 4
		fill(rnd, reflect.ValueOf(&l).Elem(), zero)
		fill(rnd, reflect.ValueOf(&o).Elem(), zero)
		check(t, l)
		check(t, o)
		// As hosts and fleets send them: plain.
		fill(rnd, reflect.ValueOf(&l).Elem(), -1)
		fill(rnd, reflect.ValueOf(&o).Elem(), -1)
		l.Spec.Env, l.Spec.Layers, o.Failure, o.Ports = nil, nil, nil, nil
		check(t, l)
		check(t, o)
		for _, m := range []any{&l, &o} {
			if raw, err := json.Marshal(m); err != nil || !readsPlain(raw, m) {
				t.Fatalf("%s was left to encoding/json", raw)
			}
		}
	}
}

func readsPlain(raw []byte, like any) bool {
	r := reader{rest: raw, ok: true}
	if _, ok := like.(*holdfast.Level); ok {
		r.level()
	} else {
		r.observation()
	}
	return r.ended()
}

// FuzzPlain: whatever comes, it is read as encoding/json reads it, or refused as it refuses it.
func FuzzPlain(f *testing.F) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 8 {
		var l holdfast.Level
		var o holdfast.Observation
		fill(rnd, reflect.ValueOf(&l).Elem(), -1)
		fill(rnd, reflect.ValueOf(&o).Elem(), -1)
		l.Spec.Env, l.Spec.Layers, o.Failure, o.Ports = nil, nil, nil, nil
		for _, m := range []any{l, o} {
			raw, err := json.Marshal(m)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(raw)
			f.Add([]byte(strings.Replace(string(raw), "1", "01", 1)))
			f.Add(raw[:len(raw)-1])
			f.Add(append(raw, '}'))
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		same[holdfast.Level](t, raw)
		same[holdfast.Observation](t, raw)
	})
}

func same[T any](t *testing.T, raw []byte) {
	t.Helper()
	var got, want T
	errGot, errWant := unmarshal(raw, &got), json.Unmarshal(raw, &want)
	if (errGot == nil) != (errWant == nil) || errGot == nil && !reflect.DeepEqual(got, want) {
		t.Fatalf("%q: %+v, %v, want %+v, %v", raw, got, errGot, want, errWant)
	}
}
