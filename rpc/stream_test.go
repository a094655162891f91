package rpc_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-dev/holdfast"
	v1 "github.com/holdfast-dev/holdfast/api/holdfast/v1"
	"github.com/holdfast-dev/holdfast/api/holdfast/v1/holdfastv1connect"
	"github.com/holdfast-dev/holdfast/client/clienttest"
	"github.com/holdfast-dev/holdfast/rpc"
)

// serve offers services without authentication and dials them.
func serve(t *testing.T, services rpc.Services) rpc.Services {
	t.Helper()
	handler := rpc.NewHandler(services, rpc.Options{Anonymous: &holdfast.Caller{Role: holdfast.RoleAdmin}})
	server := httptest.NewUnstartedServer(handler)
	server.Config = rpc.NewServer(handler)
	server.Start()
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return dial(t, server.URL)
}

func pattern(n int) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i * i >> 3)
	}
	return data
}

func TestFilesCrossWholeByEveryProtocol(t *testing.T) {
	fake := clienttest.New()
	sandbox := fake.Add(holdfast.SandboxReady).ID
	url := fake.Serve(t)
	for protocol, options := range protocols() {
		services := dial(t, url, options...)
		for _, size := range []int{0, 1, 256 << 10, 5<<20 + 3} {
			data := pattern(size)
			written, err := services.Files.WriteFile(t.Context(), holdfast.Caller{}, sandbox, holdfast.WriteFile{Path: "/f"}, bytes.NewReader(data))
			if err != nil || written.Bytes != int64(size) || written.SHA256 != fmt.Sprintf("%x", sha256.Sum256(data)) {
				t.Fatalf("%s: write of %d: %+v %v", protocol, size, written, err)
			}
			info, content, err := services.Files.ReadFile(t.Context(), holdfast.Caller{}, sandbox, holdfast.ReadFile{Path: "/f"})
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(content)
			if err := errors.Join(err, content.Close()); err != nil || !bytes.Equal(got, data) || info.Size != int64(size) {
				t.Fatalf("%s: read of %d: %d bytes, %v", protocol, size, len(got), err)
			}
		}
	}
}

// envelope frames a message as Connect's streams do.
func envelope(t *testing.T, m proto.Message) []byte {
	t.Helper()
	raw, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(raw))), raw...)
}

// contract: A14
func TestT44_AnUploadCutAnywhereReplacesNothing(t *testing.T) {
	header := envelope(t, &v1.WriteFileRequest{Part: &v1.WriteFileRequest_Header{Header: &v1.WriteFileHeader{SandboxId: "-", Path: "/f"}}})
	data := envelope(t, &v1.WriteFileRequest{Part: &v1.WriteFileRequest_Data{Data: []byte("half")}})
	for name, tail := range map[string][]byte{"between messages": nil, "within a message": data[:7]} {
		t.Run(name, func(t *testing.T) {
			fake := clienttest.New()
			fake.Put("/f", []byte("old"))
			begun, ended := make(chan struct{}), make(chan error, 1)
			services := fake.Services()
			services.Files = cutWatcher{fake, begun, ended}
			server := httptest.NewServer(rpc.NewHandler(services, rpc.Options{Anonymous: &holdfast.Caller{}}))
			defer server.Close()

			conn, err := net.Dial("tcp", server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			body := append(append(bytes.Clone(header), data...), tail...)
			w := bufio.NewWriter(conn)
			fmt.Fprintf(w, "POST /holdfast.v1.FileService/WriteFile HTTP/1.1\r\nHost: x\r\nContent-Type: application/connect+proto\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(body), body)
			if err := w.Flush(); err != nil {
				t.Fatal(err)
			}
			receive(t, begun)
			if err := conn.Close(); err != nil { // without the last chunk
				t.Fatal(err)
			}
			if err := receive(t, ended); err == nil || errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("the content of a cut upload ended with %v", err)
			}
			if got := fake.Content("/f"); string(got) != "old" {
				t.Errorf("the file is %q now", got)
			}
		})
	}
}

// contract: A14
func TestT44_AnUploadThatEndsWithoutASummaryThatFitsReplacesNothing(t *testing.T) {
	header := &v1.WriteFileRequest{Part: &v1.WriteFileRequest_Header{Header: &v1.WriteFileHeader{Path: "/f"}}}
	data := &v1.WriteFileRequest{Part: &v1.WriteFileRequest_Data{Data: []byte("new")}}
	summary := func(bytes int64, sha256 string) *v1.WriteFileRequest {
		return &v1.WriteFileRequest{Part: &v1.WriteFileRequest_Summary{Summary: &v1.FileSummary{Bytes: bytes, Sha256: sha256}}}
	}
	const right = "11507a0e2f5e69d5dfa40a62a1bd7b6ee57e6bcd85c67c9b8431b36fff21c437"
	for name, test := range map[string]struct {
		sent []proto.Message
		want string // of the file
	}{
		"nothing":           {nil, "old"},
		"no header":         {[]proto.Message{data, summary(0, "")}, "old"},
		"no summary":        {[]proto.Message{header, data}, "old"},
		"wrong count":       {[]proto.Message{header, data, summary(4, "")}, "old"},
		"wrong sum":         {[]proto.Message{header, data, summary(3, strings.Repeat("0", 64))}, "old"},
		"data after it":     {[]proto.Message{header, data, summary(3, right), data}, "old"},
		"a second header":   {[]proto.Message{header, header, summary(0, "")}, "old"},
		"a count":           {[]proto.Message{header, data, summary(3, "")}, "new"},
		"a count and a sum": {[]proto.Message{header, data, summary(3, right)}, "new"},
		"an empty summary":  {[]proto.Message{header, data, summary(0, "")}, "new"},
		"an empty file":     {[]proto.Message{header, summary(0, "")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			fake := clienttest.New()
			fake.Put("/f", []byte("old"))
			header.GetHeader().SandboxId = string(fake.Add(holdfast.SandboxReady).ID)
			var body []byte
			for _, m := range test.sent {
				body = append(body, envelope(t, m)...)
			}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, fake.Serve(t)+"/holdfast.v1.FileService/WriteFile", bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/connect+proto")
			req.Header.Set("Authorization", "Bearer "+clienttest.APIKey)
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := io.ReadAll(res.Body)
			if err := errors.Join(err, res.Body.Close()); err != nil {
				t.Fatal(err)
			}
			if got := fake.Content("/f"); string(got) != test.want {
				t.Errorf("the file is %q, not %q", got, test.want)
			}
			if refused := strings.Contains(string(answer), `"code":"invalid_argument"`); refused != (test.want == "old") {
				t.Errorf("answered %q", answer)
			}
		})
	}
}

// shortFiles sends less than its summary says.
type shortFiles struct {
	holdfastv1connect.UnimplementedFileServiceHandler
	last *v1.ReadFileResponse
}

func (s shortFiles) ReadFile(_ context.Context, _ *v1.ReadFileRequest, stream *connect.ServerStream[v1.ReadFileResponse]) error {
	err := stream.Send(&v1.ReadFileResponse{Part: &v1.ReadFileResponse_Info{Info: &v1.FileInfo{Size: 4}}})
	if err == nil {
		err = stream.Send(&v1.ReadFileResponse{Part: &v1.ReadFileResponse_Data{Data: []byte("new")}})
	}
	if err == nil && s.last != nil {
		err = stream.Send(s.last)
	}
	return err
}

// contract: A14
func TestT44_AReadThatIsNotWhatItsSenderHashedFails(t *testing.T) {
	for name, last := range map[string]*v1.ReadFileResponse{
		"no summary":  nil,
		"wrong count": {Part: &v1.ReadFileResponse_Summary{Summary: &v1.FileSummary{Bytes: 4}}},
		"wrong sum":   {Part: &v1.ReadFileResponse_Summary{Summary: &v1.FileSummary{Bytes: 3, Sha256: strings.Repeat("0", 64)}}},
	} {
		_, handler := holdfastv1connect.NewFileServiceHandler(shortFiles{last: last})
		server := httptest.NewServer(handler)
		defer server.Close()
		_, content, err := rpc.Dial(http.DefaultClient, server.URL, "").Files.ReadFile(t.Context(), holdfast.Caller{}, "sb-1", holdfast.ReadFile{Path: "/f"})
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.ReadAll(content)
		if e := plain(t, err); e.Code != holdfast.Unavailable || e.Reason != holdfast.ReasonInterrupted {
			t.Errorf("%s: %+v", name, e)
		}
		if err := content.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestAReaderThatHasEnoughIsNotHeldByALivingStream(t *testing.T) {
	fake := clienttest.New()
	sandbox := fake.Add(holdfast.SandboxReady).ID
	services := dial(t, fake.Serve(t))
	process, err := services.Processes.StartProcess(t.Context(), holdfast.Caller{}, sandbox, holdfast.StartProcess{Command: "cat"})
	if err == nil {
		_, err = services.Processes.WriteProcessInput(t.Context(), holdfast.Caller{}, sandbox, holdfast.ProcessInput{Process: process.ID, Offset: -1, Data: []byte("x")})
	}
	if err != nil {
		t.Fatal(err)
	}
	enough, done := errors.New("enough"), make(chan error, 1)
	go func() {
		_, err := services.Processes.StreamProcessOutput(t.Context(), holdfast.Caller{}, sandbox, holdfast.ReadOutput{Process: process.ID, Follow: true},
			func(holdfast.OutputChunk) error { return enough })
		done <- err
	}()
	if err := receive(t, done); !errors.Is(err, enough) {
		t.Errorf("got %v", err)
	}
}

func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(10 * time.Second):
		t.Fatal("nothing happened for 10 s")
		panic("unreachable")
	}
}

// cutWatcher tells when a write's content began to arrive, and how it ended.
type cutWatcher struct {
	holdfast.FileService
	begun chan<- struct{}
	ended chan<- error
}

func (c cutWatcher) WriteFile(ctx context.Context, caller holdfast.Caller, sandbox holdfast.SandboxID, in holdfast.WriteFile, content io.Reader) (holdfast.FileWritten, error) {
	first := make([]byte, 4)
	if _, err := io.ReadFull(content, first); err != nil {
		c.ended <- err
		return holdfast.FileWritten{}, err
	}
	close(c.begun)
	_, err := io.ReadAll(content)
	c.ended <- err
	if err != nil {
		return holdfast.FileWritten{}, err
	}
	return c.FileService.WriteFile(ctx, caller, sandbox, in, bytes.NewReader(first))
}

// brokenReader ends in an error instead of an end, as a cut source does.
type brokenReader struct{ data io.Reader }

func (b brokenReader) Read(p []byte) (int, error) {
	n, err := b.data.Read(p)
	if err == io.EOF { //nolint:errorlint // io.Reader's word for the end
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// contract: A14
func TestT44_ASourceThatBreaksReplacesNothing(t *testing.T) {
	fake := clienttest.New()
	fake.Put("/f", []byte("old"))
	sandbox := fake.Add(holdfast.SandboxReady).ID
	url := fake.Serve(t)
	for protocol, options := range protocols() {
		_, err := dial(t, url, options...).Files.WriteFile(t.Context(), holdfast.Caller{}, sandbox,
			holdfast.WriteFile{Path: "/f"}, brokenReader{bytes.NewReader(pattern(1 << 20))})
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: the caller is told %v", protocol, err)
		}
		if got := fake.Content("/f"); string(got) != "old" {
			t.Errorf("%s: the file is %d bytes now", protocol, len(got))
		}
	}
}

func TestT44_AReadWhoseSourceBreaksFailsInsteadOfEnding(t *testing.T) {
	fake := clienttest.New()
	services := fake.Services()
	services.Files = breakingFiles{fake}
	_, content, err := serve(t, services).Files.ReadFile(t.Context(), holdfast.Caller{}, "sb-1", holdfast.ReadFile{Path: "/f"})
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(content)
	if err == nil {
		t.Errorf("%d of %d bytes passed for the whole", len(got), 1<<20)
	}
	if err := content.Close(); err != nil {
		t.Error(err)
	}
}

type breakingFiles struct{ holdfast.FileService }

func (breakingFiles) ReadFile(context.Context, holdfast.Caller, holdfast.SandboxID, holdfast.ReadFile) (holdfast.FileInfo, io.ReadCloser, error) {
	return holdfast.FileInfo{}, io.NopCloser(brokenReader{bytes.NewReader(pattern(1 << 19))}), nil
}

func TestARefusedUploadIsToldWhyWhileItIsStillSending(t *testing.T) {
	fake := clienttest.New()
	sandbox := fake.Add(holdfast.SandboxSuspended).ID
	endless := io.LimitReader(zeros{}, 1<<40)
	_, err := dial(t, fake.Serve(t)).Files.WriteFile(t.Context(), holdfast.Caller{}, sandbox, holdfast.WriteFile{Path: "/f"}, endless)
	if e := plain(t, err); e.Code != holdfast.FailedPrecondition || e.Reason != holdfast.ReasonState || e.Resource != string(sandbox) {
		t.Errorf("got %+v", e)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestOutputOfAnySizeAndContentCrossesInParts(t *testing.T) {
	data := pattern(1<<20 + 5)
	services := serve(t, rpc.Services{Processes: bigOutput{data: data}})
	var got []byte
	process, err := services.Processes.StreamProcessOutput(t.Context(), holdfast.Caller{}, "sb-1", holdfast.ReadOutput{}, func(c holdfast.OutputChunk) error {
		if c.Offset != int64(len(got)) || len(c.Data) > 256<<10 || c.Stream != holdfast.Stderr {
			t.Fatalf("a chunk of %d bytes at %d of %s, after %d", len(c.Data), c.Offset, c.Stream, len(got))
		}
		got = append(got, c.Data...)
		return nil
	})
	if err != nil || !bytes.Equal(got, data) || process.ExitCode != 3 {
		t.Errorf("%d bytes, %+v, %v", len(got), process, err)
	}
	enough := errors.New("enough")
	_, err = services.Processes.StreamProcessOutput(t.Context(), holdfast.Caller{}, "sb-1", holdfast.ReadOutput{}, func(holdfast.OutputChunk) error { return enough })
	if !errors.Is(err, enough) {
		t.Errorf("a reader that has enough is told %v", err)
	}
}

type bigOutput struct {
	holdfast.ProcessService
	data []byte
}

func (b bigOutput) StreamProcessOutput(_ context.Context, _ holdfast.Caller, _ holdfast.SandboxID, _ holdfast.ReadOutput, yield func(holdfast.OutputChunk) error) (holdfast.Process, error) {
	if err := yield(holdfast.OutputChunk{Stream: holdfast.Stderr, Data: b.data}); err != nil {
		return holdfast.Process{}, err
	}
	return holdfast.Process{State: holdfast.ProcessExited, ExitCode: 3}, nil
}

func TestAFollowerThatHangsUpEndsTheCallAtTheServer(t *testing.T) {
	fake := clienttest.New()
	sandbox := fake.Add(holdfast.SandboxReady).ID
	ended := make(chan error, 1)
	services := fake.Services()
	services.Processes = endWatcher{fake, ended}
	remote := serve(t, services)
	ctx, hangUp := context.WithCancel(t.Context())
	process, err := remote.Processes.StartProcess(ctx, holdfast.Caller{}, sandbox, holdfast.StartProcess{Command: "cat", Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := remote.Processes.WriteProcessInput(ctx, holdfast.Caller{}, sandbox, holdfast.ProcessInput{Process: process.ID, Offset: -1, Data: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	_, err = remote.Processes.StreamProcessOutput(ctx, holdfast.Caller{}, sandbox, holdfast.ReadOutput{Process: process.ID, Follow: true}, func(holdfast.OutputChunk) error {
		hangUp()
		return nil
	})
	if holdfast.CodeOf(err) != holdfast.Cancelled {
		t.Errorf("the follower is told %v", err)
	}
	if err := receive(t, ended); !errors.Is(err, context.Canceled) {
		t.Errorf("the service is told %v", err)
	}
}

type endWatcher struct {
	holdfast.ProcessService
	ended chan<- error
}

func (e endWatcher) StreamProcessOutput(ctx context.Context, caller holdfast.Caller, sandbox holdfast.SandboxID, in holdfast.ReadOutput, yield func(holdfast.OutputChunk) error) (holdfast.Process, error) {
	p, err := e.ProcessService.StreamProcessOutput(ctx, caller, sandbox, in, yield)
	e.ended <- err
	return p, err
}

func TestAWatchSaysWhenItStandsAndThenWhatChanges(t *testing.T) {
	fake := clienttest.New()
	sandbox := fake.Add(holdfast.SandboxReady).ID
	services := dial(t, fake.Serve(t))
	seen := errors.New("seen")
	err := services.Files.WatchDirectory(t.Context(), holdfast.Caller{}, sandbox, holdfast.WatchDirectory{Path: "/d", Started: func() {
		fake.Put("/d/\xffname", nil)
		fake.Change(sandbox, func(*holdfast.Sandbox) {})
	}}, func(e holdfast.FileEvent) error {
		if e != (holdfast.FileEvent{Path: "/d/\xffname", Kind: holdfast.FileCreated}) {
			t.Errorf("got %+v", e)
		}
		return seen
	})
	if !errors.Is(err, seen) {
		t.Errorf("the watch ended with %v", err)
	}
}

func TestWhatAGuestNamesOrPrintsNeverBreaksAnAnswer(t *testing.T) {
	fake := clienttest.New()
	sandbox := fake.Add(holdfast.SandboxReady).ID
	fake.Put("/d/\xff\xfe", []byte("x"))
	fake.Change(sandbox, func(s *holdfast.Sandbox) {
		s.Failure = &holdfast.Failure{Reason: holdfast.ReasonBootFailed, Message: "said \xff", LogTail: "\x80\x81"}
	})
	services := dial(t, fake.Serve(t))
	files, err := services.Files.ListDirectory(t.Context(), holdfast.Caller{}, sandbox, "/d")
	if err != nil || len(files) != 1 || files[0].Path != "/d/\xff\xfe" {
		t.Errorf("a name that is no UTF-8: %+v %v", files, err)
	}
	got, err := services.Sandboxes.GetSandbox(t.Context(), holdfast.Caller{}, sandbox)
	if err != nil || got.Failure == nil || !strings.HasPrefix(got.Failure.Message, "said ") {
		t.Errorf("a failure that is no UTF-8: %+v %v", got.Failure, err)
	}
	fake.Before = func(context.Context, clienttest.Call) error {
		return holdfast.E(holdfast.Aborted, holdfast.ReasonClaimed, "\xff").With("\xfe", "\xff").On("\xff")
	}
	if _, err := services.Sandboxes.GetSandbox(t.Context(), holdfast.Caller{}, sandbox); holdfast.ReasonOf(err) != holdfast.ReasonClaimed {
		t.Errorf("an error that is no UTF-8: %v", err)
	}
}
