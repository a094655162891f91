package holdfast_test

import (
	"errors"
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
)

const (
	sandboxID = "sb-00000000000000000000000000"
	processID = "pr-00000000000000000000000000"
)

type validator interface{ Validate() error }

func goodCreate(change func(*holdfast.CreateSandbox)) holdfast.CreateSandbox {
	in := holdfast.CreateSandbox{RequestID: "r-1", Environment: "base"}
	change(&in)
	return in
}

func many(n int, value string) map[string]string {
	m := map[string]string{}
	for i := range n {
		m["K"+strconv.Itoa(i)] = value
	}
	return m
}

// contract: A3, A8 (trap T7)
func TestT7_EveryWrongFieldIsNamedWithItsLimit(t *testing.T) {
	tests := map[string]struct {
		in    validator
		field string
		says  string // what the message must contain
	}{
		"no request id":          {goodCreate(func(in *holdfast.CreateSandbox) { in.RequestID = "" }), "request_id", "1 to 128"},
		"long request id":        {goodCreate(func(in *holdfast.CreateSandbox) { in.RequestID = strings.Repeat("x", 129) }), "request_id", "129"},
		"space in request id":    {goodCreate(func(in *holdfast.CreateSandbox) { in.RequestID = "a b" }), "request_id", "byte 1"},
		"non-ASCII request id":   {goodCreate(func(in *holdfast.CreateSandbox) { in.RequestID = "é" }), "request_id", "visible ASCII"},
		"no environment":         {goodCreate(func(in *holdfast.CreateSandbox) { in.Environment = "" }), "environment", "base"},
		"environment with space": {goodCreate(func(in *holdfast.CreateSandbox) { in.Environment = "a b" }), "environment", "visible"},
		"long environment":       {goodCreate(func(in *holdfast.CreateSandbox) { in.Environment = strings.Repeat("x", 257) }), "environment", "257"},
		"long name":              {goodCreate(func(in *holdfast.CreateSandbox) { in.Name = strings.Repeat("x", 129) }), "name", "129"},
		"name of two lines":      {goodCreate(func(in *holdfast.CreateSandbox) { in.Name = "a\nb" }), "name", "control"},
		"name not UTF-8":         {goodCreate(func(in *holdfast.CreateSandbox) { in.Name = "\xff" }), "name", "UTF-8"},
		"ttl too short":          {goodCreate(func(in *holdfast.CreateSandbox) { in.TTL = time.Millisecond }), "ttl", "1ms"},
		"ttl negative":           {goodCreate(func(in *holdfast.CreateSandbox) { in.TTL = -time.Second }), "ttl", "-1s"},
		"ttl too long":           {goodCreate(func(in *holdfast.CreateSandbox) { in.TTL = 367 * 24 * time.Hour }), "ttl", "8784h0m0s"},
		"unknown restart":        {goodCreate(func(in *holdfast.CreateSandbox) { in.Restart = "ALWAYS" }), "restart", "FRESH"},
		"extend by nothing":      {holdfast.ExtendSandbox{ID: sandboxID}, "ttl", "missing"},
		"extend by too little":   {holdfast.ExtendSandbox{ID: sandboxID, TTL: time.Millisecond}, "ttl", "1ms"},
		"extend another's id":    {holdfast.ExtendSandbox{ID: "x", TTL: time.Hour}, "id", "sb-"},
		"set nothing":            {holdfast.SetSandboxLifetime{ID: sandboxID}, "ttl", "nothing to set"},
		"set unknown end":        {holdfast.SetSandboxLifetime{ID: sandboxID, OnExpiry: "KEEP"}, "on_expiry", "SUSPEND"},
		"set if negative":        {holdfast.SetSandboxLifetime{ID: sandboxID, TTL: time.Hour, IfGeneration: -1}, "if_generation", "-1"},
		"watch from a nonsense":  {holdfast.WatchSandboxes{After: "a b"}, "after", "version"},
		"unknown expiry":         {goodCreate(func(in *holdfast.CreateSandbox) { in.OnExpiry = "7" }), "on_expiry", "DELETE, SUSPEND"},
		"unknown egress":         {goodCreate(func(in *holdfast.CreateSandbox) { in.Egress = "LAN" }), "egress", "INTERNET, NONE"},
		"env name":               {goodCreate(func(in *holdfast.CreateSandbox) { in.Env = map[string]string{"1A": ""} }), "env", "1A"},
		"env empty name":         {goodCreate(func(in *holdfast.CreateSandbox) { in.Env = map[string]string{"": ""} }), "env", "letters"},
		"env value with NUL":     {goodCreate(func(in *holdfast.CreateSandbox) { in.Env = map[string]string{"A": "\x00"} }), "env[A]", "NUL"},
		"env too many":           {goodCreate(func(in *holdfast.CreateSandbox) { in.Env = many(257, "") }), "env", "257"},
		"env too large":          {goodCreate(func(in *holdfast.CreateSandbox) { in.Env = map[string]string{"A": strings.Repeat("x", 64<<10)} }), "env", "65537"},
		"labels too many":        {goodCreate(func(in *holdfast.CreateSandbox) { in.Labels = many(65, "") }), "labels", "65"},
		"label key with =":       {goodCreate(func(in *holdfast.CreateSandbox) { in.Labels = map[string]string{"a=b": ""} }), "labels", "a=b"},
		"label value too long":   {goodCreate(func(in *holdfast.CreateSandbox) { in.Labels = many(1, strings.Repeat("x", 257)) }), "labels[K0]", "257"},
		"cpu":                    {goodCreate(func(in *holdfast.CreateSandbox) { in.Resources.CPUMillis = -1 }), "resources.cpu_millis", "-1"},
		"memory":                 {goodCreate(func(in *holdfast.CreateSandbox) { in.Resources.MemoryBytes = 1 }), "resources.memory_bytes", "16777216"},
		"pids":                   {goodCreate(func(in *holdfast.CreateSandbox) { in.Resources.PIDs = 1 << 21 }), "resources.pids", "1048576"},
		"mutate: id":             {holdfast.MutateSandbox{ID: "sb-1"}, "id", "sb-1"},
		"mutate: other kind":     {holdfast.MutateSandbox{ID: processID}, "id", "sb-"},
		"mutate: generation":     {holdfast.MutateSandbox{ID: sandboxID, IfGeneration: -1}, "if_generation", "-1"},
		"list: state":            {holdfast.ListSandboxes{States: []holdfast.SandboxState{"17"}}, "states", "17"},
		"list: page size":        {holdfast.ListSandboxes{PageSize: 1001}, "page_size", "1000"},
		"list: token":            {holdfast.ListSandboxes{PageToken: strings.Repeat("x", 1025)}, "page_token", "none"},
		"log: offset":            {holdfast.SandboxLog{ID: sandboxID, Offset: -1}, "offset", "-1"},
		"operations: resource":   {holdfast.ListOperations{Resource: "x"}, "resource", "sb-"},
		"operations: page size":  {holdfast.ListOperations{Resource: sandboxID, PageSize: -1}, "page_size", "-1"},
		"start: no command":      {holdfast.StartProcess{}, "command", "empty"},
		"start: command NUL":     {holdfast.StartProcess{Command: "a\x00"}, "command", "NUL"},
		"start: args":            {holdfast.StartProcess{Command: "a", Args: make([]string, 4097)}, "args", "4097"},
		"start: one long arg":    {holdfast.StartProcess{Command: "a", Args: []string{strings.Repeat("x", 128<<10)}}, "args[0]", "131072"},
		"start: long in all":     {holdfast.StartProcess{Command: "a", Args: slicesOf(9, strings.Repeat("x", 120<<10))}, "args", "in all"},
		"start: cwd":             {holdfast.StartProcess{Command: "a", Cwd: "tmp"}, "cwd", "relative"},
		"start: terminal":        {holdfast.StartProcess{Command: "a", Terminal: &holdfast.TerminalSize{Columns: 80}}, "terminal", "80 by 0"},
		"start: request id":      {holdfast.StartProcess{Command: "a", RequestID: "\t"}, "request_id", "visible"},
		"output: process":        {holdfast.ReadOutput{Process: "pr-"}, "process_id", "pr-"},
		"output: offset":         {holdfast.ReadOutput{Process: processID, StderrOffset: -5}, "stderr_offset", "-5"},
		"input: data":            {holdfast.ProcessInput{Process: processID, Data: make([]byte, 1<<20+1)}, "data", "1048577"},
		"input: process":         {holdfast.ProcessInput{Process: "x"}, "process_id", "x"},
		"read: no path":          {holdfast.ReadFile{}, "path", "absolute"},
		"read: length":           {holdfast.ReadFile{Path: "/a", Length: -1}, "length", "-1"},
		"write: 5,000 chars":     {holdfast.WriteFile{Path: "/" + strings.Repeat("x", 5000)}, "path", "5001"},
		"write: one long name":   {holdfast.WriteFile{Path: "/" + strings.Repeat("x", 256)}, "path", "256"},
		"write: mode":            {holdfast.WriteFile{Path: "/a", Mode: 0o100644}, "mode", "0100644"},
		"watch: NUL":             {holdfast.WatchDirectory{Path: "/\x00"}, "path", "NUL"},
		"watch: not UTF-8":       {holdfast.WatchDirectory{Path: "/\xff"}, "path", "UTF-8"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var e *holdfast.Error
			if err := test.in.Validate(); !errors.As(err, &e) {
				t.Fatalf("accepted: %v", err)
			}
			if e.Code != holdfast.InvalidArgument || e.Reason != holdfast.ReasonBadField || e.Details["field"] != test.field {
				t.Errorf("got %s %s field %q, want %s %s field %q", e.Code, e.Reason, e.Details["field"],
					holdfast.InvalidArgument, holdfast.ReasonBadField, test.field)
			}
			if !strings.Contains(e.Message, test.says) || len(e.Message) > 300 || strings.Contains(e.Message, "\n") {
				t.Errorf("message %q should be one bounded line that says %q", e.Message, test.says)
			}
		})
	}
}

func slicesOf(n int, value string) []string {
	s := make([]string, n)
	for i := range s {
		s[i] = value
	}
	return s
}

func TestWhatIsAtItsLimitPasses(t *testing.T) {
	env := many(holdfast.MaxEnv, "")
	maps.Copy(env, map[string]string{"K0": "\xc3\xa9\n"})
	for name, in := range map[string]validator{
		"create": goodCreate(func(in *holdfast.CreateSandbox) {
			in.RequestID = strings.Repeat("~", holdfast.MaxRequestID)
			in.Name = strings.Repeat("é", holdfast.MaxName/2)
			in.TTL, in.OnExpiry, in.Egress, in.Restart = holdfast.MaxTTL, holdfast.ExpirySuspend, holdfast.EgressNone, holdfast.RestartFresh
			in.Env, in.Labels = env, many(holdfast.MaxLabels, strings.Repeat("x", holdfast.MaxLabelLength))
			in.Resources = holdfast.Resources{CPUMillis: 1, MemoryBytes: holdfast.MinMemoryBytes, PIDs: holdfast.MinPIDs}
		}),
		"defaults": goodCreate(func(*holdfast.CreateSandbox) {}),
		"extend":   holdfast.ExtendSandbox{ID: sandboxID, TTL: holdfast.LongestTTL},
		"lifetime": holdfast.SetSandboxLifetime{ID: sandboxID, OnExpiry: holdfast.ExpirySuspend},
		"watch":    holdfast.WatchSandboxes{After: "7.sb-1"},
		"mutate":   holdfast.MutateSandbox{ID: sandboxID, IfGeneration: 3},
		"list":     holdfast.ListSandboxes{States: []holdfast.SandboxState{holdfast.SandboxDeleted}, PageSize: holdfast.MaxPageSize},
		"log":      holdfast.SandboxLog{ID: sandboxID, Follow: true},
		"journal":  holdfast.ListOperations{Resource: sandboxID},
		"start": holdfast.StartProcess{Command: "sh", Args: []string{"", strings.Repeat("x", holdfast.MaxArg)}, Cwd: "/",
			Terminal: &holdfast.TerminalSize{Columns: 65535, Rows: 1}, RequestID: "!"},
		"output": holdfast.ReadOutput{Process: processID},
		"input":  holdfast.ProcessInput{Process: processID, Offset: -1, Data: make([]byte, holdfast.MaxProcessInput)},
		"write":  holdfast.WriteFile{Path: strings.Repeat("/"+strings.Repeat("x", 255), 15), Mode: holdfast.MaxMode},
	} {
		if err := in.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := errors.Join(holdfast.CheckSignal("signal", "TERM"), holdfast.CheckSignal("signal", "RTMIN+1")); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"", "term", "9 ", "AAAAAAAAAAAAAAAAA"} {
		if holdfast.CheckSignal("signal", name) == nil {
			t.Errorf("signal %q passed", name)
		}
	}
}

func TestAForkNamesACheckpointAndNeedsNoEnvironment(t *testing.T) {
	const ck = "ck-00000000000000000000000000"
	for _, c := range []struct {
		source      holdfast.CheckpointID
		environment string
		ok          bool
	}{
		{"", "base", true}, {"", "", false}, {ck, "", true}, {ck, "base", true}, {ck, "a b", false}, {"sb-00000000000000000000000000", "", false}, {"ck-1", "base", false},
	} {
		err := goodCreate(func(in *holdfast.CreateSandbox) { in.Source, in.Environment = c.source, c.environment }).Validate()
		if (err == nil) != c.ok {
			t.Errorf("source %q, environment %q: %v", c.source, c.environment, err)
		}
	}
}
