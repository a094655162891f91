package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client/clienttest"
)

// cli runs command lines against a fake server.
type cli struct {
	fake *clienttest.Fake
	env  map[string]string
	in   io.Reader
}

func newCLI(t *testing.T) *cli {
	t.Helper()
	fake := clienttest.New()
	return &cli{fake: fake, in: strings.NewReader(""), env: map[string]string{
		"HOME": t.TempDir(), "HOLDFAST_SERVER": fake.Serve(t), "HOLDFAST_API_KEY": clienttest.APIKey, "HOLDFAST_DATA_DIR": t.TempDir(),
	}}
}

// result is what a command line did.
type result struct {
	code        int
	stdout, err string
}

func (c *cli) run(t *testing.T, args ...string) result {
	t.Helper()
	return c.runTo(t, nil, args...)
}

func (c *cli) runTo(t *testing.T, out io.Writer, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if out == nil {
		out = &stdout
	}
	code := run(t.Context(), args, streams{c.in, out, &stderr}, func(name string) (string, bool) {
		value, ok := c.env[name]
		return value, ok
	})
	return result{code, stdout.String(), stderr.String()}
}

// ids replaces what differs from run to run.
func ids(text string) string {
	text = regexp.MustCompile(`\b(sb|op|pr|req|in)-[0-9a-z]{26}\b`).ReplaceAllString(text, "$1-ID")
	text = regexp.MustCompile(`"\d{4}-\d\d-\d\dT[^"]*"`).ReplaceAllString(text, `"TIME"`)
	text = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`).ReplaceAllString(text, "TIME")
	text = regexp.MustCompile(`\d+s ago`).ReplaceAllString(text, "0s ago")
	return regexp.MustCompile(` +`).ReplaceAllString(text, " ")
}

func (r result) want(t *testing.T, code int, stdout, stderr string) {
	t.Helper()
	if r.code != code || ids(r.stdout) != stdout || ids(r.err) != stderr {
		t.Errorf("\n got %d\nstdout %q\nstderr %q\nwant %d\nstdout %q\nstderr %q", r.code, ids(r.stdout), ids(r.err), code, stdout, stderr)
	}
}

// contract: A10
func TestA10_CreatePrintsTheRequestIDItMadeAndARerunWithItIsTheSameSandbox(t *testing.T) {
	c := newCLI(t)
	first := c.run(t, "sandbox", "create", "base", "--name", "one", "--ttl", "1h", "--label", "a=b")
	first.want(t, 0, "ID NAME ENVIRONMENT STATE PENDING CREATED EXPIRES\nsb-ID one base READY - 0s ago in 60m\n", "request-id: req-ID\n")
	id := strings.TrimSpace(strings.TrimPrefix(first.err, "request-id: "))
	again := c.run(t, "sandbox", "create", "base", "--name", "one", "--ttl", "1h", "--label", "a=b", "--request-id", id)
	again.want(t, 0, ids(first.stdout), "")
	if strings.Fields(again.stdout)[7] != strings.Fields(first.stdout)[7] {
		t.Error("the rerun made another sandbox")
	}
	other := c.run(t, "sandbox", "create", "base", "--name", "two", "--request-id", id)
	if other.code != 4 || !strings.Contains(other.err, "ALREADY_EXISTS") || !strings.Contains(other.err, "\nnext: ") {
		t.Errorf("other input under the same id: %+v", other)
	}
}

// contract: A9, A10
func TestA9_WhatIsGivenUpExits5AndPrintsTheRequestIDToKeep(t *testing.T) {
	c := newCLI(t)
	c.fake.Before = func(ctx context.Context, _ clienttest.Call) error { <-ctx.Done(); return ctx.Err() }
	r := c.run(t, "sandbox", "create", "base", "--request-id", "keep-me", "--timeout", "20ms")
	if r.code != 5 || r.stdout != "" || !strings.Contains(r.err, "next: it may have happened: run the same command again with --request-id keep-me\n") || strings.Count(r.err, "\n") != 2 {
		t.Errorf("got %+v", r)
	}
	c = newCLI(t) // the first one's server still ends the call that was given up
	c.fake.Before = func(context.Context, clienttest.Call) error {
		return holdfast.E(holdfast.Unavailable, holdfast.ReasonUnreachable, "no answer")
	}
	r = c.run(t, "sandbox", "exec", "sb-00000000000000000000000000", "--request-id", "run-1", "--", "echo")
	if r.code != 5 || !strings.Contains(r.err, "--request-id run-1") {
		t.Errorf("got %+v", r)
	}
}

func TestLifecycleCommandsShowTheSandboxAsTableAndJSON(t *testing.T) {
	c := newCLI(t)
	id := string(c.fake.Add(holdfast.SandboxReady).ID)
	const header = "ID NAME ENVIRONMENT STATE PENDING CREATED EXPIRES\n"
	c.run(t, "sandbox", "suspend", id).want(t, 0, header+"sb-ID - base SUSPENDED - 0s ago -\n", "")
	c.run(t, "sandbox", "resume", id, "-o", "json").want(t, 0,
		`{"id":"sb-ID","project":"default","creator":"test","environment":"base","state":"READY","generation":"3","incarnation":"1","ttl":"3600s","createdAt":"TIME","updatedAt":"TIME"}`+"\n", "")
	c.run(t, "sandbox", "list", "-o", "json").want(t, 0,
		`{"sandboxes":[{"id":"sb-ID","project":"default","creator":"test","environment":"base","state":"READY","generation":"3","incarnation":"1","ttl":"3600s","createdAt":"TIME","updatedAt":"TIME"}]}`+"\n", "")
	c.run(t, "sandbox", "operations", id).want(t, 0,
		"ID KIND STATE GENERATION ATTEMPTS SINCE FINISHED LAST-ERROR\nop-ID RESUME DONE 3 1 TIME TIME -\nop-ID SUSPEND DONE 2 1 TIME TIME -\n", "")
	c.run(t, "sandbox", "delete", id, "--if-generation", "1").want(t, 4, "",
		"error: generation is 3 (FAILED_PRECONDITION GENERATION)\nnext: look at the sandbox: holdfast sandbox get sb-ID\n")
	c.run(t, "sandbox", "delete", id).want(t, 0, header+"sb-ID - base DELETED - 0s ago -\n", "")
	c.run(t, "sandbox", "list").want(t, 0, header, "")
	c.run(t, "sandbox", "list", "-o", "json").want(t, 0, `{"sandboxes":[]}`+"\n", "")
	c.run(t, "sandbox", "list", "--all", "--page-size", "1").want(t, 0, header+"sb-ID - base DELETED - 0s ago -\n", "")
}

// contract: A4
func TestA4_DeletingWhatIsNotThereExits0(t *testing.T) {
	r := newCLI(t).run(t, "sandbox", "delete", "sb-00000000000000000000000000", "-o", "json")
	r.want(t, 0, `{"id":"sb-ID","state":"DELETED"}`+"\n", "")
}

func TestGetShowsWhatIsPendingAndWhatIsSafe(t *testing.T) {
	c := newCLI(t)
	id := c.fake.Add(holdfast.SandboxCreating).ID
	c.fake.Change(id, func(s *holdfast.Sandbox) {
		s.Failure = &holdfast.Failure{Reason: holdfast.ReasonBootFailed, Message: "it \x1b[31mdied", LogTail: "one\ntwo\n"}
		s.Operation = &holdfast.Operation{ID: "op-1", Kind: holdfast.OperationCreate, Attempts: 3, WaitsFor: "image", Next: "run it again",
			Claim: &holdfast.Claim{Holder: "server-1"}, LastError: holdfast.E(holdfast.Unavailable, holdfast.ReasonPreparing, "being prepared")}
	})
	r := c.run(t, "sandbox", "get", string(id))
	for _, says := range []string{"State CREATING", "Failure BOOT_FAILED: it [31mdied", "Log one\nLog two", "Pending CREATE op-1, since -, 3 attempts",
		"Claim held by server-1 until -", "Waits for image", "Last error being prepared (UNAVAILABLE PREPARING)", "Next run it again"} {
		if !strings.Contains(ids(r.stdout), says) {
			t.Errorf("%q is not in %q", says, ids(r.stdout))
		}
	}
	if strings.Contains(r.stdout, "\x1b") {
		t.Error("an escape sequence reached the terminal")
	}
}

func TestExitCodesAndTheTwoLinesOfAnError(t *testing.T) {
	c := newCLI(t)
	missing := "sb-00000000000000000000000000"
	suspended := string(c.fake.Add(holdfast.SandboxSuspended).ID)
	tests := map[string]struct {
		args []string
		code int
		err  string
	}{
		"no argument":      {[]string{"sandbox", "get"}, 2, "error: ID is missing\nnext: see holdfast --help, or --help of the command\n"},
		"one too many":     {[]string{"sandbox", "get", "a", "b"}, 2, "error: \"b\" is one argument too many\nnext: see holdfast --help, or --help of the command\n"},
		"no such command":  {[]string{"sandbox", "frob"}, 2, "error: there is no command \"holdfast sandbox frob\"\nnext: see holdfast --help, or --help of the command\n"},
		"no such flag":     {[]string{"sandbox", "list", "--frob"}, 2, "error: unknown flag: --frob\nnext: see holdfast --help, or --help of the command\n"},
		"bad output":       {[]string{"sandbox", "list", "-o", "xml"}, 2, "error: --output is table or json, not \"xml\"\nnext: see holdfast --help, or --help of the command\n"},
		"bad server":       {[]string{"sandbox", "list", "--server", "localhost"}, 2, "error: the server's address \"localhost\" is no URL such as http://127.0.0.1:7420\nnext: see holdfast --help, or --help of the command\n"},
		"bad id":           {[]string{"sandbox", "suspend", "x"}, 2, "error: id \"x\" is not an id: expected sb- and 26 characters of 0-9 and a-z (without i, l, o, u) (INVALID_ARGUMENT BAD_FIELD)\nnext: correct id, then run this again\n"},
		"bad ttl":          {[]string{"sandbox", "create", "base", "--ttl", "0s"}, 2, "error: --ttl is 0s; it must be between 1s and 24h0m0s\nnext: see holdfast --help, or --help of the command\n"},
		"bad label":        {[]string{"sandbox", "create", "base", "--label", "x"}, 2, "error: --label \"x\" must be KEY=VALUE\nnext: see holdfast --help, or --help of the command\n"},
		"empty request id": {[]string{"sandbox", "create", "base", "--request-id", ""}, 2, "error: --request-id is empty; name this request by 1 to 128 visible ASCII characters, and repeat it under the same name (INVALID_ARGUMENT BAD_FIELD)\nnext: correct --request-id, then run this again\n"},
		"not found":        {[]string{"sandbox", "get", missing}, 3, "error: no sandbox sb-ID (NOT_FOUND UNKNOWN)\nnext: list what there is: holdfast sandbox list --all\n"},
		"wrong key":        {[]string{"sandbox", "list", "--api-key", "hf_no"}, 1, ""},
		"wrong state":      {[]string{"sandbox", "exec", suspended, "--", "echo"}, 1, "error: sandbox is SUSPENDED (FAILED_PRECONDITION STATE)\nnext: look at the sandbox: holdfast sandbox get sb-ID\n"},
		"no such file":     {[]string{"sandbox", "download", string(c.fake.Add(holdfast.SandboxReady).ID), "/none", "-"}, 3, "error: /none: no such file (NOT_FOUND NO_SUCH_FILE)\nnext: list the directory: holdfast sandbox ls ID PATH\n"},
		"exec, no command": {[]string{"sandbox", "exec", suspended}, 2, "error: exec needs a sandbox's id and a command: holdfast sandbox exec ID -- COMMAND\nnext: see holdfast --help, or --help of the command\n"},
		"upload directory": {[]string{"sandbox", "upload", suspended, "/", "/x"}, 1, "error: / is a directory\nnext: upload one file; of a directory: tar c DIR | holdfast sandbox upload ID - /tmp/dir.tar\n"},
		"unknown expiry":   {[]string{"sandbox", "create", "base", "--on-expiry", "keep"}, 2, "error: on_expiry is \"KEEP\"; it must be one of DELETE, SUSPEND (INVALID_ARGUMENT BAD_FIELD)\nnext: correct on_expiry, then run this again\n"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := c.run(t, test.args...)
			if r.code != test.code || r.stdout != "" || strings.Count(r.err, "\n") != 2 || test.err != "" && ids(r.err) != test.err {
				t.Errorf("got %d %q %q, want %d %q", r.code, r.stdout, ids(r.err), test.code, test.err)
			}
		})
	}
}

func TestAServerThatIsNotThereIsSaidSo(t *testing.T) {
	c := newCLI(t)
	r := c.run(t, "sandbox", "list", "--server", "http://127.0.0.1:1")
	if r.code != 1 || !strings.Contains(r.err, "next: is the server running at http://127.0.0.1:1? holdfast serve starts one") {
		t.Errorf("got %+v", r)
	}
}

func TestAFailedCreateExits1WithItsReason(t *testing.T) {
	c := newCLI(t)
	c.run(t, "sandbox", "create", "base", "--request-id", "r")
	r := c.run(t, "sandbox", "list", "-o", "json")
	found := regexp.MustCompile(`sb-[0-9a-z]{26}`).FindString(r.stdout)
	c.fake.Change(holdfast.SandboxID(found), func(s *holdfast.Sandbox) {
		s.State, s.Failure = holdfast.SandboxFailed, &holdfast.Failure{Reason: holdfast.ReasonSetupFailed, Message: "setup exited with 3"}
	})
	r = c.run(t, "sandbox", "create", "base", "--request-id", "r")
	if r.code != 1 || !strings.Contains(r.stdout, "FAILED") || ids(r.err) != "error: sandbox sb-ID failed: setup exited with 3 (SETUP_FAILED)\nnext: see more: holdfast sandbox logs sb-ID; another request id makes another sandbox\n" {
		t.Errorf("got %+v", r)
	}
}

func TestExecStreamsApartAndExitsWithTheRemoteCode(t *testing.T) {
	c := newCLI(t)
	id := string(c.fake.Add(holdfast.SandboxReady).ID)
	c.run(t, "sandbox", "exec", id, "--", "echo", "hello", "-x").want(t, 0, "hello -x\n", "")
	c.run(t, "sandbox", "exec", id, "--", "err", "oops").want(t, 0, "", "oops\n")
	c.run(t, "sandbox", "exec", id, "--", "exit", "42").want(t, 42, "", "")
	c.run(t, "sandbox", "exec", id, "--", "nope").want(t, 1, "",
		"error: nope: no such command (FAILED_PRECONDITION NO_SUCH_COMMAND)\nnext: correct the command, or use an environment that has it\n")
	c.in = strings.NewReader("some input")
	c.run(t, "sandbox", "exec", id, "--", "cat").want(t, 0, "some input", "")
	c.in = strings.NewReader("a terminal's")
	c.run(t, "sandbox", "exec", id, "--tty", "--", "cat").want(t, 0, "a terminal's", "")
	start := c.fake.Calls("StartProcess")
	if in := start[len(start)-1].In.(holdfast.StartProcess); in.Terminal == nil || in.Terminal.Columns != 80 {
		t.Errorf("no terminal was asked for: %+v", in)
	}
	c.run(t, "sandbox", "exec", id, "-o", "json", "--stdin=false", "--", "exit", "3").want(t, 3,
		`{"started":{"id":"pr-ID","requestId":"req-ID","incarnation":"1","command":"exit","args":["3"],"pid":105,"state":"EXITED","exitCode":3,"startedAt":"TIME","finishedAt":"TIME"}}`+"\n"+
			`{"finished":{"id":"pr-ID","requestId":"req-ID","incarnation":"1","command":"exit","args":["3"],"pid":105,"state":"EXITED","exitCode":3,"startedAt":"TIME","finishedAt":"TIME"}}`+"\n", "")
	r := c.run(t, "sandbox", "exec", id, "-o", "json", "--", "echo", "x")
	if !strings.Contains(r.stdout, `{"output":{"stream":"STDOUT","data":"eAo="}}`) {
		t.Errorf("no record of the output: %s", r.stdout)
	}
}

// contract: A14
func TestA14_ADetachedProcessIsWaitedForAndKilled(t *testing.T) {
	c := newCLI(t)
	id := string(c.fake.Add(holdfast.SandboxReady).ID)
	r := c.run(t, "sandbox", "exec", id, "--wait=false", "--request-id", "p-1", "--", "sleep")
	r.want(t, 0, "pr-ID\n", "")
	process := strings.TrimSpace(r.stdout)
	c.run(t, "sandbox", "exec", id, "--wait=false", "--request-id", "p-1", "--", "sleep").want(t, 0, "pr-ID\n", "")
	c.run(t, "sandbox", "processes", id).want(t, 0, "ID PID STATE EXIT STARTED FINISHED COMMAND\npr-ID 100 RUNNING - TIME - sleep\n", "")
	c.run(t, "sandbox", "kill", id, process, "--signal", "sigkill").want(t, 0, "", "")
	c.run(t, "sandbox", "wait", id, process).want(t, 137, "", "")
	c.run(t, "sandbox", "kill", id, process, "--signal", "FROB").want(t, 2, "", "error: no signal \"FROB\" (INVALID_ARGUMENT BAD_FIELD)\nnext: correct the input, then run this again\n")
	c.run(t, "sandbox", "wait", id, "pr-00000000000000000000000000").want(t, 3, "", "error: no process pr-ID (NOT_FOUND UNKNOWN)\nnext: list what there is: holdfast sandbox list --all\n")
}

// firstWrite tells when something was written.
type firstWrite struct {
	bytes.Buffer
	told chan struct{}
}

func (f *firstWrite) Write(p []byte) (int, error) {
	if f.told != nil {
		close(f.told)
		f.told = nil
	}
	return f.Buffer.Write(p)
}

func TestInterruptsAreForwardedAndTheThirdStopsWaiting(t *testing.T) {
	for _, swallowed := range []bool{false, true} {
		c := newCLI(t)
		id := string(c.fake.Add(holdfast.SandboxReady).ID)
		delivered := make(chan string, 4)
		c.fake.Before = func(_ context.Context, call clienttest.Call) error {
			if call.Method != "SignalProcess" {
				return nil
			}
			delivered <- call.In.(string)
			if swallowed {
				return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonEnded, "swallowed")
			}
			return nil
		}
		reader, writer := io.Pipe()
		c.in = io.MultiReader(strings.NewReader("ready"), reader)
		out := &firstWrite{told: make(chan struct{})}
		told, done := out.told, make(chan result, 1)
		go func() { done <- c.runTo(t, out, "sandbox", "exec", id, "--", "cat") }()
		await(t, told)
		interrupt(t)
		if name := await(t, delivered); name != "INT" {
			t.Errorf("forwarded %s", name)
		}
		if swallowed {
			interrupt(t)
			await(t, delivered)
			interrupt(t)
		}
		r := await(t, done)
		if err := writer.Close(); err != nil {
			t.Fatal(err)
		}
		if !swallowed && r.code != 130 {
			t.Errorf("an interrupted command: %+v", r)
		}
		if swallowed && (r.code != 5 || !strings.Contains(ids(r.err), "next: the process may run on: holdfast sandbox wait sb-ID pr-ID --stdout-offset 5 --stderr-offset 0")) {
			t.Errorf("a command that swallows interrupts: %+v", r)
		}
	}
}

func interrupt(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
}

func await[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(10 * time.Second):
		t.Fatal("nothing happened for 10 s")
		panic("unreachable")
	}
}

func TestFilesGoInAndOutWhole(t *testing.T) {
	c := newCLI(t)
	id := string(c.fake.Add(holdfast.SandboxReady).ID)
	dir := t.TempDir()
	local := filepath.Join(dir, "in")
	if err := os.WriteFile(local, []byte("content"), 0o640); err != nil {
		t.Fatal(err)
	}
	c.run(t, "sandbox", "upload", id, local, "/data/in").want(t, 0, "/data/in: 7 bytes, SHA-256 ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73\n", "")
	if in := c.fake.Calls("WriteFile")[0].In.(holdfast.WriteFile); in.Mode != 0o640 {
		t.Errorf("the mode is %o", in.Mode)
	}
	c.in = strings.NewReader("piped")
	c.run(t, "sandbox", "upload", id, "-", "/data/piped", "-o", "json").want(t, 0,
		`{"info":{"path":"/data/piped","kind":"FILE","size":"5","mode":420,"modifiedAt":"TIME"},"bytes":"5","sha256":"445ceeeeba637c6b4a4e4544ced907e52f2743284cc38903d6b1799458c8e00e"}`+"\n", "")
	c.run(t, "sandbox", "ls", id, "/data").want(t, 0, "MODE UID GID SIZE MODIFIED NAME\n-rw-r--r-- 0 0 7 TIME in\n-rw-r--r-- 0 0 5 TIME piped\n", "")
	c.run(t, "sandbox", "ls", id, "/none", "-o", "json").want(t, 0, `{"files":[]}`+"\n", "")
	c.run(t, "sandbox", "download", id, "/data/in", "-").want(t, 0, "content", "")
	if r := c.run(t, "sandbox", "download", id, "/data/in", dir); r.code != 0 {
		t.Errorf("into a directory: %+v", r)
	}
	target := filepath.Join(dir, "link")
	if err := os.Symlink(local, target); err != nil {
		t.Fatal(err)
	}
	if r := c.run(t, "sandbox", "download", id, "/data/piped", target); r.code != 0 {
		t.Errorf("through a link: %+v", r)
	}
	if got, err := os.ReadFile(local); err != nil || string(got) != "piped" {
		t.Errorf("the link's target holds %q, %v", got, err)
	}
	if r := c.run(t, "sandbox", "download", id, "/data/in", os.DevNull); r.code != 0 {
		t.Errorf("into a device: %+v", r)
	}
	if info, err := os.Stat(os.DevNull); err != nil || info.Mode().IsRegular() {
		t.Fatalf("the device is a file now: %v %v", info, err)
	}
}

// contract: A14 (trap T44)
func TestT44_ADownloadThatFailsLeavesTheOldFileAndNothingElse(t *testing.T) {
	c := newCLI(t)
	id := string(c.fake.Add(holdfast.SandboxReady).ID)
	dir := t.TempDir()
	local := filepath.Join(dir, "f")
	if err := os.WriteFile(local, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := c.run(t, "sandbox", "download", id, "/none", local); r.code != 3 {
		t.Errorf("got %+v", r)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("left: %v %v", entries, err)
	}
	if got, err := os.ReadFile(local); err != nil || string(got) != "old" {
		t.Errorf("the file holds %q, %v", got, err)
	}
}

func TestLogsPrintTheConsole(t *testing.T) {
	c := newCLI(t)
	id := string(c.fake.Add(holdfast.SandboxFailed).ID)
	c.run(t, "sandbox", "logs", id).want(t, 0, "booted\n", "")
	c.run(t, "sandbox", "logs", id, "--offset", "3", "-o", "json").want(t, 0, `{"output":{"stream":"CONSOLE","offset":"3","data":"dGVkCg=="}}`+"\n", "")
}

func TestTheKeyIsFoundAndGoesToNoOtherServer(t *testing.T) {
	const local, remote = "http://127.0.0.1:7420", "http://example.test:7420"
	tests := map[string]struct {
		adminKey, file string
		server, key    string
		env            map[string]string
		want           settings
	}{
		"nothing":                         {want: settings{server: local}},
		"admin.key":                       {adminKey: "hf_admin\n", want: settings{local, "hf_admin"}},
		"admin.key stays on this machine": {adminKey: "hf_admin", server: remote, want: settings{server: remote}},
		"file":                            {file: "server: " + remote + "\napi-key: hf_file\n", want: settings{remote, "hf_file"}},
		"file's key is for file's server": {file: "server: " + remote + "\napi-key: hf_file\n", server: local, want: settings{server: local}},
		"file without server":             {file: "api-key: hf_file", want: settings{local, "hf_file"}},
		"admin.key before the file":       {adminKey: "hf_admin", file: "api-key: hf_file", want: settings{local, "hf_admin"}},
		"environment before what lies":    {adminKey: "hf_admin", env: map[string]string{"HOLDFAST_API_KEY": "hf_env", "HOLDFAST_SERVER": remote}, want: settings{remote, "hf_env"}},
		"flag before the environment":     {server: local, key: "hf_flag", env: map[string]string{"HOLDFAST_API_KEY": "hf_env", "HOLDFAST_SERVER": remote}, want: settings{local, "hf_flag"}},
		"a loopback name":                 {adminKey: "hf_admin", server: "http://localhost:1", want: settings{"http://localhost:1", "hf_admin"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			home, data := t.TempDir(), t.TempDir()
			put(t, filepath.Join(home, ".config", "holdfast", "config.yaml"), test.file)
			put(t, filepath.Join(data, "admin.key"), test.adminKey)
			a := &app{server: test.server, key: test.key, env: func(name string) (string, bool) {
				value, ok := map[string]string{"HOME": home, "HOLDFAST_DATA_DIR": data}[name]
				if given, set := test.env[name]; set {
					return given, true
				}
				return value, ok
			}}
			if got, err := a.lookup(); err != nil || got != test.want {
				t.Errorf("got %+v %v, want %+v", got, err, test.want)
			}
		})
	}
}

func put(t *testing.T, path, content string) {
	t.Helper()
	if content == "" {
		return
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAnUnknownSettingNamesItsLine(t *testing.T) {
	c := newCLI(t)
	put(t, filepath.Join(c.env["HOME"], ".config", "holdfast", "config.yaml"), "server: http://127.0.0.1:1\nkey: x\n")
	r := c.run(t, "sandbox", "list")
	if r.code != 1 || !strings.Contains(r.err, "line 2") || !strings.Contains(r.err, "next: it may hold server: and api-key:") {
		t.Errorf("got %+v", r)
	}
}

func TestVersionCompletionAndHelp(t *testing.T) {
	c := newCLI(t)
	if r := c.run(t, "version", "-o", "json"); r.code != 0 || !json.Valid([]byte(r.stdout)) {
		t.Errorf("version: %+v", r)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if r := c.run(t, "completion", shell); r.code != 0 || !strings.Contains(r.stdout, "holdfast") {
			t.Errorf("completion %s: %d", shell, r.code)
		}
	}
	if r := c.run(t, "sandbox"); r.code != 0 || !strings.Contains(r.stdout, "download") {
		t.Errorf("help: %+v", r)
	}
}

func TestDoctorSaysWhatIsMissingAndExits1OnlyForWhatIsNeeded(t *testing.T) {
	gone := func(context.Context) (string, error) { return "", os.ErrNotExist }
	there := func(context.Context) (string, error) { return "here", nil }
	for _, test := range []struct {
		wanted string
		code   int
	}{{"runc", 1}, {"simulated", 0}} {
		var out bytes.Buffer
		a := &app{streams: streams{out: &out}, output: "json"}
		err := a.doctor(test.wanted, examine(t.Context(), test.wanted, []probe{
			{"a", []string{"runc"}, "apt-get install a", gone}, {"b", []string{"runc"}, "", there}, {"c", nil, "apt-get install c", gone},
		}))
		if code := exitFor(err); code != test.code {
			t.Errorf("%s: exit code %d", test.wanted, code)
		}
		var said struct {
			OK     bool
			Checks []check
		}
		if err := json.Unmarshal(out.Bytes(), &said); err != nil {
			t.Fatal(err)
		}
		if said.OK != (test.code == 0) || said.Checks[0].OK || said.Checks[0].Fix != "apt-get install a" || !said.Checks[1].OK || said.Checks[2].Needed {
			t.Errorf("%s: %s", test.wanted, out.String())
		}
	}
	r := newCLI(t).run(t, "doctor", "--runtime", "simulated")
	if r.code != 0 || !strings.Contains(r.stdout, "oci-runtime") {
		t.Errorf("on this machine: %+v", r)
	}
}

func exitFor(err error) int {
	if err == nil {
		return 0
	}
	return exitCode(err)
}
