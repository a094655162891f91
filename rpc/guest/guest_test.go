package guest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/guestagent"
	"github.com/holdfast-dev/holdfast/rpc/guest"
	"github.com/holdfast-dev/holdfast/rpc/hop"
)

// served is an agent behind a real server on a real socket, under a prefix as a
// host agent mounts it.
type served struct {
	holdfast.Guest
	root   string
	socket string
}

func serve(t *testing.T) *served {
	t.Helper()
	s := &served{root: t.TempDir(), socket: filepath.Join(t.TempDir(), "guest.sock")}
	agent, err := guestagent.New(guestagent.Config{
		Guest: holdfast.GuestConfig{Instance: "in-00000000000000000000000000", Incarnation: 2},
		Spool: t.TempDir(), Root: s.root, Executor: guestagent.NewSimulatedExecutor(nil),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := agent.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	s.listen(t, http.StripPrefix("/guest/x", guest.Handler(agent.Guest())))
	t.Cleanup(func() {
		cancel()
		running.Wait()
		if err := agent.Close(); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "ready", func() bool {
		status, err := s.Status(t.Context())
		return err == nil && status.Ready && status.Incarnation == 2
	})
	return s
}

func (s *served) listen(t *testing.T, handler http.Handler) {
	t.Helper()
	listener, err := net.Listen("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", s.socket)
	}}
	s.Guest = guest.Dial(hop.Client{HTTP: &http.Client{Transport: transport}, URL: "http://guest/guest/x"})
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func must[T any](value T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func TestProcessesOverTheSocket(t *testing.T) {
	s := serve(t)
	p := must(s.Processes.StartProcess(t.Context(), holdfast.StartProcess{Command: "cat", Stdin: true, RequestID: "r"}))(t)
	again := must(s.Processes.StartProcess(t.Context(), holdfast.StartProcess{Command: "cat", Stdin: true, RequestID: "r"}))(t)
	if again.ID != p.ID || p.Incarnation != 2 {
		t.Errorf("%+v, %+v", p, again)
	}
	binary := bytes.Repeat([]byte{0, 255, '\n', 128, '"'}, 40_000)
	if offset := must(s.Processes.WriteProcessInput(t.Context(), holdfast.ProcessInput{Process: p.ID, Data: binary, Close: true}))(t); offset != int64(len(binary)) {
		t.Errorf("offset %d", offset)
	}
	offset, err := s.Processes.WriteProcessInput(t.Context(), holdfast.ProcessInput{Process: p.ID, Offset: 1 << 40, Data: binary[:1]})
	if offset != int64(len(binary)) || holdfast.CodeOf(err) != holdfast.OutOfRange {
		t.Errorf("a gap: %d, %v", offset, err)
	}
	var out []byte
	got := must(s.Processes.StreamProcessOutput(t.Context(), holdfast.ReadOutput{Process: p.ID, Follow: true}, func(c holdfast.OutputChunk) error {
		if c.Offset != int64(len(out)) || c.Stream != holdfast.Stdout {
			t.Errorf("chunk at %d of %s", c.Offset, c.Stream)
		}
		out = append(out, c.Data...)
		return nil
	}))(t)
	if !bytes.Equal(out, binary) || got.State != holdfast.ProcessExited || got.StdoutSize != int64(len(binary)) {
		t.Errorf("%d bytes, %+v", len(out), got)
	}
	sleeper := must(s.Processes.StartProcess(t.Context(), holdfast.StartProcess{Command: "sleep", Args: []string{"1h"}}))(t)
	if err := s.Processes.SignalProcess(t.Context(), sleeper.ID, "TERM"); err != nil {
		t.Error(err)
	}
	eventually(t, "it ended", func() bool {
		got, err := s.Processes.GetProcess(t.Context(), sleeper.ID)
		return err == nil && got.ExitCode == 143
	})
	if list := must(s.Processes.ListProcesses(t.Context()))(t); len(list) != 2 || list[0].ID != p.ID {
		t.Errorf("%+v", list)
	}
	if err := s.Processes.ResizeTerminal(t.Context(), sleeper.ID, holdfast.TerminalSize{Columns: 1, Rows: 1}); holdfast.ReasonOf(err) != holdfast.ReasonState {
		t.Errorf("resize: %v", err)
	}
	if _, err := s.Processes.StartProcess(t.Context(), holdfast.StartProcess{Command: "nope"}); holdfast.ReasonOf(err) != holdfast.ReasonNoSuchCommand {
		t.Errorf("no such command: %v", err)
	}
	if _, err := s.Processes.StreamProcessOutput(t.Context(), holdfast.ReadOutput{Process: "pr-00000000000000000000000000"}, nil); holdfast.CodeOf(err) != holdfast.NotFound {
		t.Errorf("unknown: %v", err)
	}
	if err := s.Log(t.Context(), 0, false, nil); holdfast.CodeOf(err) != holdfast.Unimplemented {
		t.Errorf("a guest has no log: %v", err)
	}
}

func TestFilesOverTheSocket(t *testing.T) {
	s := serve(t)
	content := bytes.Repeat([]byte("0123456789\x00\xff"), 300_000)
	written := must(s.Files.WriteFile(t.Context(), holdfast.WriteFile{Path: "/a/b/c", CreateParents: true}, bytes.NewReader(content)))(t)
	if written.Bytes != int64(len(content)) || written.Info.Size != written.Bytes || len(written.SHA256) != 64 {
		t.Errorf("%+v", written)
	}
	for _, c := range []struct{ offset, length, end int64 }{{0, 0, int64(len(content))}, {5, 7, 12}, {int64(len(content)), 0, int64(len(content))}} {
		info, reader, err := s.Files.ReadFile(t.Context(), holdfast.ReadFile{Path: "/a/b/c", Offset: c.offset, Length: c.length})
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(reader)
		if err != nil || !bytes.Equal(raw, content[c.offset:c.end]) || info.Size != int64(len(content)) {
			t.Errorf("%+v: %d bytes, %v", c, len(raw), err)
		}
		if err := reader.Close(); err != nil {
			t.Error(err)
		}
	}
	if got := must(s.Files.MoveFile(t.Context(), "/a/b/c", "/a/d"))(t); got.Path != "/a/d" {
		t.Errorf("%+v", got)
	}
	if got := must(s.Files.MakeDirectory(t.Context(), "/a/e", 0o700))(t); got.Kind != holdfast.FileDirectory || got.Mode != 0o700 {
		t.Errorf("%+v", got)
	}
	if list := must(s.Files.ListDirectory(t.Context(), "/a"))(t); len(list) != 3 || list[1].Path != "/a/d" {
		t.Errorf("%+v", list)
	}
	if err := s.Files.RemoveFile(t.Context(), "/a", false); holdfast.ReasonOf(err) != holdfast.ReasonNotEmpty {
		t.Errorf("not empty: %v", err)
	}
	if err := s.Files.RemoveFile(t.Context(), "/a", true); err != nil {
		t.Error(err)
	}
	if _, err := s.Files.StatFile(t.Context(), "/a"); holdfast.CodeOf(err) != holdfast.NotFound {
		t.Errorf("removed: %v", err)
	}
}

func TestWatchOverTheSocketStartsBeforeItSaysSo(t *testing.T) {
	s := serve(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var seen []holdfast.FileEvent
	err := s.Files.WatchDirectory(ctx, holdfast.WatchDirectory{Path: "/", Recursive: true, Started: func() {
		if err := os.Mkdir(filepath.Join(s.root, "sub"), 0o755); err != nil {
			t.Error(err)
		}
	}}, func(e holdfast.FileEvent) error {
		seen = append(seen, e)
		cancel()
		return nil
	})
	if holdfast.CodeOf(err) != holdfast.Cancelled || len(seen) == 0 || seen[0] != (holdfast.FileEvent{Path: "/sub", Kind: holdfast.FileCreated}) {
		t.Errorf("%v, %v", seen, err)
	}
}

// trap T44: an upload that breaks off, in whatever way, is not taken for a whole one.
func TestT44_CutUploadLeavesTheOldFileAndNothingElse(t *testing.T) {
	s := serve(t)
	path := filepath.Join(s.root, "f")
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	untouched := func(t *testing.T) {
		t.Helper()
		eventually(t, "only the old file is there", func() bool {
			entries, err := os.ReadDir(s.root)
			raw, readErr := os.ReadFile(path)
			return err == nil && readErr == nil && len(entries) == 1 && string(raw) == "old"
		})
	}
	broken := errors.New("disk of the client broke")
	for name, content := range map[string]io.Reader{
		"content fails":          io.MultiReader(strings.NewReader("new"), iotest.ErrReader(broken)),
		"content is cut itself":  io.MultiReader(strings.NewReader("new"), iotest.ErrReader(io.ErrUnexpectedEOF)),
		"content wraps its end":  io.MultiReader(strings.NewReader("new"), iotest.ErrReader(fmt.Errorf("odd: %w", io.EOF))),
		"content fails at once":  iotest.ErrReader(broken),
		"content fails after 1M": io.MultiReader(bytes.NewReader(make([]byte, 1<<20)), iotest.ErrReader(broken)),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.Files.WriteFile(t.Context(), holdfast.WriteFile{Path: "/f"}, content)
			if holdfast.CodeOf(err) != holdfast.Unavailable || holdfast.ReasonOf(err) != holdfast.ReasonInterrupted {
				t.Errorf("%v", err)
			}
			untouched(t)
		})
	}
	t.Run("client hangs up", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		content, feed := io.Pipe()
		go func() {
			_, _ = feed.Write(make([]byte, 1<<20))
			cancel()
		}()
		if _, err := s.Files.WriteFile(ctx, holdfast.WriteFile{Path: "/f"}, content); holdfast.CodeOf(err) != holdfast.Cancelled {
			t.Errorf("%v", err)
		}
		untouched(t)
	})
	// A well-formed HTTP body that stops at any byte before its end.
	whole := upload(t)
	for _, at := range []int{0, 1, 4, 6, len(whole) - 20, len(whole) - 9, len(whole) - 1} {
		t.Run(fmt.Sprintf("body of %d of %d bytes", at, len(whole)), func(t *testing.T) {
			client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", s.socket)
			}}}
			defer client.CloseIdleConnections()
			res, err := client.Post("http://guest/guest/x/files/write", "", bytes.NewReader(whole[:at]))
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if res.StatusCode != http.StatusServiceUnavailable {
				t.Errorf("status %s", res.Status)
			}
			untouched(t)
		})
	}
	t.Run("and the whole of it is taken", func(t *testing.T) {
		must(s.Files.WriteFile(t.Context(), holdfast.WriteFile{Path: "/f"}, strings.NewReader("new")))(t)
		if raw, err := os.ReadFile(path); err != nil || string(raw) != "new" {
			t.Errorf("%q, %v", raw, err)
		}
	})
}

// upload captures what a client sends to write "new" to /f.
func upload(t *testing.T) []byte {
	t.Helper()
	var body []byte
	capture := roundTrip(func(r *http.Request) (*http.Response, error) {
		raw, err := io.ReadAll(r.Body)
		body = raw
		return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader("{}")), Request: r}, err
	})
	g := guest.Dial(hop.Client{HTTP: &http.Client{Transport: capture}, URL: "http://x"})
	must(g.Files.WriteFile(t.Context(), holdfast.WriteFile{Path: "/f"}, strings.NewReader("new")))(t)
	return body
}

type roundTrip func(*http.Request) (*http.Response, error)

func (r roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return r(req) }

// trap T44, the other way: a download that is cut is never taken for complete.
func TestT44_CutDownloadIsToldFromAWholeOne(t *testing.T) {
	s := serve(t)
	if err := os.WriteFile(filepath.Join(s.root, "f"), make([]byte, 500_000), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, limit := range []int64{100, 300, 1000, 131_000, 262_500, 499_999, 500_200} {
		info, reader, err := cutGuest(s, limit).Files.ReadFile(t.Context(), holdfast.ReadFile{Path: "/f"})
		if err != nil {
			if holdfast.CodeOf(err) != holdfast.Unavailable {
				t.Errorf("%d: %v", limit, err)
			}
			continue
		}
		n, err := io.Copy(io.Discard, reader)
		if holdfast.CodeOf(err) != holdfast.Unavailable || holdfast.ReasonOf(err) != holdfast.ReasonInterrupted {
			t.Errorf("cut at %d: %d of %d bytes, %v", limit, n, info.Size, err)
		}
		_ = reader.Close()
	}
	// A server that ends its answer properly, but too early.
	for _, body := range []string{"", "h", "h\x00\x00\x00\x02{}", "h\x00\x00\x00\x02{}d\x00\x00\x00\x02ab", "h\x00\x00\x00\x02{}d\x00\x00\x00\x02abe\x00\x00\x00\x0b{\"bytes\":3}", "h\x00\x00\x00\x02{}d\xff\xff\xff\xffab"} {
		early := roundTrip(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
		})
		_, reader, err := guest.Dial(hop.Client{HTTP: &http.Client{Transport: early}, URL: "http://x"}).Files.ReadFile(t.Context(), holdfast.ReadFile{Path: "/f"})
		if err == nil {
			_, err = io.ReadAll(reader)
		}
		if holdfast.ReasonOf(err) != holdfast.ReasonInterrupted {
			t.Errorf("%q: %v", body, err)
		}
	}
}

// cutGuest reaches s over connections that break after limit bytes of answers.
func cutGuest(s *served, limit int64) holdfast.Guest {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", s.socket)
		return &cutConn{Conn: conn, left: limit}, err
	}}
	return guest.Dial(hop.Client{HTTP: &http.Client{Transport: transport}, URL: "http://guest/guest/x"})
}

type cutConn struct {
	net.Conn
	left int64
}

func (c *cutConn) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := c.Conn.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	return n, err
}

// An error that comes before the upload is read reaches the client, also when it
// has much to send.
func TestEarlyRefusalOfALargeUpload(t *testing.T) {
	s := serve(t)
	for range 5 {
		_, err := s.Files.WriteFile(t.Context(), holdfast.WriteFile{Path: "/no/such/parent"}, io.LimitReader(zeros{}, 64<<20))
		if holdfast.CodeOf(err) != holdfast.NotFound || holdfast.ReasonOf(err) != holdfast.ReasonNoSuchFile {
			t.Errorf("%v", err)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// Clients that hang up in the middle leave nothing running on the other side.
func TestHangingUpCancelsTheOtherSide(t *testing.T) {
	ended := make(chan string, 3)
	began := make(chan struct{}, 3)
	wait := func(ctx context.Context, name string) error {
		began <- struct{}{}
		<-ctx.Done()
		ended <- name
		return ctx.Err()
	}
	s := &served{socket: filepath.Join(t.TempDir(), "s")}
	s.listen(t, http.StripPrefix("/guest/x", guest.Handler(holdfast.Guest{
		Log: func(ctx context.Context, _ int64, _ bool, yield func(holdfast.OutputChunk) error) error {
			if err := yield(holdfast.OutputChunk{Data: []byte("x")}); err != nil {
				return err
			}
			return wait(ctx, "log")
		},
		Status: func(ctx context.Context) (holdfast.GuestStatus, error) {
			return holdfast.GuestStatus{}, wait(ctx, "status")
		},
	})))
	for name, call := range map[string]func(context.Context) error{
		"log": func(ctx context.Context) error {
			return s.Log(ctx, 0, true, func(holdfast.OutputChunk) error { return nil })
		},
		"status": func(ctx context.Context) error { _, err := s.Status(ctx); return err },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-began; cancel() }()
		if err := call(ctx); holdfast.CodeOf(err) != holdfast.Cancelled {
			t.Errorf("%s: %v", name, err)
		}
		select {
		case got := <-ended:
			if got != name {
				t.Errorf("%s ended instead of %s", got, name)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s goes on", name)
		}
	}
	// The yield's own error is returned as it is.
	stop := errors.New("enough")
	if err := s.Log(t.Context(), 0, true, func(holdfast.OutputChunk) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("%v", err)
	}
}

// A stream without its last frame is UNAVAILABLE, never an end.
func TestCutStreamIsNotAnEnd(t *testing.T) {
	for _, body := range []string{"", "{\"chunk\":{\"data\":\"eA==\"}}\n", "{\"chunk\":", "nonsense\n", "{\"done\":true}\n"} {
		early := roundTrip(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
		})
		g := guest.Dial(hop.Client{HTTP: &http.Client{Transport: early}, URL: "http://x"})
		_, err := g.Processes.StreamProcessOutput(t.Context(), holdfast.ReadOutput{}, func(holdfast.OutputChunk) error { return nil })
		if holdfast.CodeOf(err) != holdfast.Unavailable || holdfast.ReasonOf(err) != holdfast.ReasonInterrupted {
			t.Errorf("%q: %v", body, err)
		}
	}
}

// trap T45: a start whose answer is lost is not sent again by the transport.
func TestT45_LostAnswerIsNotRepeated(t *testing.T) {
	s := serve(t)
	must(s.Status(t.Context()))(t) // leaves an idle connection behind
	g := cutGuest(s, 10)
	_, err := g.Processes.StartProcess(t.Context(), holdfast.StartProcess{Command: "true"})
	if holdfast.CodeOf(err) != holdfast.Unavailable {
		t.Errorf("%v", err)
	}
	if list := must(s.Processes.ListProcesses(t.Context()))(t); len(list) != 1 {
		t.Errorf("%d processes", len(list))
	}
}

func TestMalformedRequests(t *testing.T) {
	s := serve(t)
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", s.socket)
	}}}
	defer client.CloseIdleConnections()
	for _, c := range []struct {
		path   string
		body   io.Reader
		status int
	}{
		{"/processes/start", strings.NewReader("{"), 400},
		{"/processes/output", strings.NewReader("[]"), 400},
		{"/processes/start", io.LimitReader(zeros{}, 1<<20), 400},
		{"/files/read", strings.NewReader(`{"path":"relative"}`), 400},
		{"/files/list", strings.NewReader(`{"path":"/x\u0000"}`), 400},
		{"/no/such/call", strings.NewReader("{}"), 501},
	} {
		res, err := client.Post("http://guest/guest/x"+c.path, "application/json", c.body)
		if err != nil {
			t.Errorf("%s: %v", c.path, err)
			continue
		}
		if res.StatusCode != c.status {
			t.Errorf("%s: %s", c.path, res.Status)
		}
		if err := res.Body.Close(); err != nil {
			t.Error(err)
		}
	}
}
