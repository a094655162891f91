package guestagent_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/guestagent"
)

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func answer(r *http.Request, status int) (*http.Response, error) {
	return &http.Response{StatusCode: status, Body: http.NoBody, Request: r, Header: http.Header{}}, nil
}

// contract: B5, B6: the call home has three attempts, telemetry that hangs does
// not delay it, and whether it arrives changes nothing for who asks.
func TestB6_TelemetryNeverDelaysTheCallHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var deliveries []time.Duration
		var ids []string
		var telemetry atomic.Int64
		began := time.Now()
		c := guestagent.Config{
			Guest: holdfast.GuestConfig{Instance: "in-00000000000000000000000000", Incarnation: 1, Secret: []byte("s"), CallbackURL: "http://home"},
			Spool: t.TempDir(), Root: t.TempDir(), Executor: guestagent.NewSimulatedExecutor(nil),
			TelemetryEvery: 100 * time.Millisecond,
			HTTP: &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
				deliveries = append(deliveries, time.Since(began))
				ids = append(ids, r.Header.Get("Webhook-Id"))
				if len(deliveries) < 3 {
					return nil, errors.New("lost")
				}
				return answer(r, 204)
			})},
			Telemetry: &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
				if !strings.HasSuffix(r.URL.Path, "/telemetry") {
					t.Errorf("%s", r.URL)
				}
				telemetry.Add(1)
				<-r.Context().Done()
				return nil, r.Context().Err()
			})},
		}
		a, err := guestagent.New(c)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := a.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(500 * time.Millisecond) // virtual: between attempts
		synctest.Wait()
		if status, err := a.Status(ctx); err != nil || !status.Ready {
			t.Errorf("who asks waits for the call home: %+v, %v", status, err)
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if len(deliveries) != 3 || deliveries[1] < 800*time.Millisecond || deliveries[1] > 1200*time.Millisecond || deliveries[2]-deliveries[1] > 6*time.Second {
			t.Errorf("attempts at %v", deliveries)
		}
		if ids[0] == "" || ids[0] != ids[1] || ids[1] != ids[2] {
			t.Errorf("ids %q", ids)
		}
		if telemetry.Load() == 0 {
			t.Error("no telemetry")
		}
		cancel()
		running.Wait()
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
}

// contract: B5: what is refused is not sent again.
func TestB5_RefusedCallHomeIsNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		a, err := guestagent.New(guestagent.Config{
			Guest: holdfast.GuestConfig{Instance: "in-00000000000000000000000000", Incarnation: 1, Secret: []byte("s"), CallbackURL: "http://home"},
			Spool: t.TempDir(), Root: t.TempDir(), Executor: guestagent.NewSimulatedExecutor(nil), TelemetryEvery: -1,
			HTTP: &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) { calls++; return answer(r, 410) })},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := a.Run(ctx); err == nil || calls != 1 {
			t.Errorf("%d calls, %v", calls, err)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
}

// The simulation answers as the system does, in virtual time.
func TestSimulatedProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, err := guestagent.New(guestagent.Config{
			Guest: holdfast.GuestConfig{Instance: "in-00000000000000000000000000", Incarnation: 1, ProcessDefaults: holdfast.ProcessDefaults{Env: map[string]string{"A": "1"}}},
			Spool: t.TempDir(), Root: t.TempDir(), Executor: guestagent.NewSimulatedExecutor(nil),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := a.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		sim := agent{Agent: a, Guest: a.Guest()}
		for _, c := range []struct {
			in   holdfast.StartProcess
			code int
			out  string
		}{
			{holdfast.StartProcess{Command: "echo", Args: []string{"a", "b"}}, 0, "a b\n"},
			{holdfast.StartProcess{Command: "exit", Args: []string{"9"}}, 9, ""},
			{holdfast.StartProcess{Command: "true"}, 0, ""},
			{holdfast.StartProcess{Command: "false"}, 1, ""},
			{holdfast.StartProcess{Command: "cat"}, 0, ""},
			{holdfast.StartProcess{Command: "sleep", Args: []string{"1.5"}}, 0, ""},
			{holdfast.StartProcess{Command: "env", Env: map[string]string{"B": "2"}}, 0, "A=1\nB=2\nHOME=/\nPATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"},
			{shell("-c", "echo a 'b  \"c'; false\n\n exit 4\necho d"), 4, "a b  \"c\n"},
			{shell("-e", "-c", "echo a; false; echo b"), 1, "a\n"},
			{shell("-c", `echo "$0" '$0' x$0 ""`, "me"), 0, "me $0 xme \n"},
			{shell("-c", `exec /bin/sh -e -c "$0" 2>&1`, "echo a\ngit clone\necho b"), 127, "a\ncommand not found: the simulation has no \"git\"\n"},
			{shell("script"), 2, ""},
		} {
			if got, out, _ := sim.wait(t, sim.start(t, c.in).ID); got.ExitCode != c.code || string(out) != c.out {
				t.Errorf("%s %q: %d, %q", c.in.Command, c.in.Args, got.ExitCode, out)
			}
		}
		for _, in := range []holdfast.StartProcess{{Command: "sleep", Args: []string{"1h"}}, shell("-c", "sleep 1h; echo late")} {
			sleeper := sim.start(t, in)
			if err := sim.Processes.SignalProcess(ctx, sleeper.ID, "TERM"); err != nil {
				t.Error(err)
			}
			if got, out, _ := sim.wait(t, sleeper.ID); got.ExitCode != 143 || len(out) != 0 {
				t.Errorf("%+v, %q", got, out)
			}
		}
		left := sim.start(t, holdfast.StartProcess{Command: "sleep", Args: []string{"1h"}})
		cancel()
		running.Wait()
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		if got, err := sim.Processes.GetProcess(t.Context(), left.ID); err != nil || got.ExitCode != 137 {
			t.Errorf("%+v, %v", got, err)
		}
		if _, err := sim.Processes.StartProcess(t.Context(), holdfast.StartProcess{Command: "true"}); err == nil {
			t.Error("it starts after its end")
		}
	})
}

func shell(args ...string) holdfast.StartProcess {
	return holdfast.StartProcess{Command: "/bin/sh", Args: args}
}
