package guestagent_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/guestagent"
)

// keeper keeps what a process writes, once its gate is open.
type keeper struct {
	gate    chan struct{}
	blocked chan struct{} // closed at the first write
	slow    time.Duration

	mu     sync.Mutex
	once   sync.Once
	data   bytes.Buffer
	closed chan struct{}
}

func newKeeper() *keeper {
	return &keeper{gate: make(chan struct{}), blocked: make(chan struct{}), closed: make(chan struct{})}
}

func (k *keeper) Write(p []byte) (int, error) {
	k.once.Do(func() { close(k.blocked) })
	<-k.gate
	if k.slow > 0 {
		time.Sleep(k.slow) // a disk that takes its time
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.data.Write(p)
}

func (k *keeper) size() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.data.Len()
}

func (k *keeper) Close() error { close(k.closed); return nil }

type discard struct{ io.Writer }

func (discard) Close() error { return nil }

func startScript(t *testing.T, script string, stdout io.WriteCloser) guestagent.Child {
	t.Helper()
	child, err := system.Start(guestagent.Command{
		Name: "sh", Args: []string{"-c", script}, Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/",
		Stdin: true, Stdout: stdout, Stderr: discard{io.Discard},
	})
	if err != nil {
		t.Fatal(err)
	}
	return child
}

// However slow the disk, the end of a process is not told before what it wrote
// is kept, also when a child that it left holds its output open.
func TestWaitReturnsOnlyOnceAllThatTheProcessWroteIsKept(t *testing.T) {
	out := newKeeper()
	child := startScript(t, `echo first; read go; head -c 60000 /dev/zero; sleep 300 & exit 5`, out)
	defer killSession(t, child.PID())
	<-out.blocked
	if _, err := child.WriteInput(t.Context(), []byte("go\n")); err != nil {
		t.Fatal(err)
	}
	code := make(chan int, 1)
	go func() { code <- child.Wait() }()
	eventually(t, "it is reaped", func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/%d", child.PID()))
		return os.IsNotExist(err)
	})
	select {
	case <-code:
		t.Error("the end was told before the output was kept")
	case <-time.After(50 * time.Millisecond): // time to be wrong in
	}
	close(out.gate)
	if got := <-code; got != 5 || out.size() != len("first\n")+60000 {
		t.Errorf("exit code %d, %d bytes: %.40q", got, out.size(), out.data.String())
	}
	select {
	case <-out.closed:
		t.Error("a child can still write, and the stream is closed")
	default:
	}
}

// A child that writes faster than the disk takes does not keep the end back.
func TestWaitDoesNotFollowAChildThatNeverStopsWriting(t *testing.T) {
	out := newKeeper()
	out.slow = 25 * time.Millisecond
	close(out.gate)
	child := startScript(t, `yes & read go; exit 6`, out)
	defer killSession(t, child.PID())
	eventually(t, "it is in full flow", func() bool { return out.size() > 1<<18 })
	if _, err := child.WriteInput(t.Context(), []byte("go\n")); err != nil {
		t.Fatal(err)
	}
	code := make(chan int, 1)
	go func() { code <- child.Wait() }()
	select {
	case got := <-code:
		if got != 6 {
			t.Errorf("exit code %d", got)
		}
	case <-time.After(10 * time.Second):
		t.Error("it goes on")
	}
}
