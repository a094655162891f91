package holdfast

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Limits of what a request may hold, besides those beside its noun.
const (
	MaxEnvironment  = 256         // bytes of an environment's reference
	MaxPageToken    = 1024        // bytes
	MaxArgs         = 4096        // arguments of a process
	MaxArg          = 128<<10 - 1 // bytes of one argument: Linux takes no longer one
	MaxCommandBytes = 1 << 20     // bytes of a command and its arguments together
	MaxPathName     = 255         // bytes of one name within a path
	MaxMode         = 0o7777      // permission bits
)

// bad makes the error for a field whose form is wrong; the message says the
// limit and what was given.
func bad(field, format string, args ...any) error {
	return E(InvalidArgument, ReasonBadField, "%s %s", field, fmt.Sprintf(format, args...)).With("field", field)
}

// firstError returns the first error there is: fields are checked in order, so
// that the same bad input always gets the same answer.
func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Validate checks the form of every field, before any key is reserved (trap T7).
func (in CreateSandbox) Validate() error {
	made := checkEnvironment(in.Environment)
	if in.Source != "" {
		if made = CheckID("source.checkpoint", PrefixCheckpoint, string(in.Source)); made == nil && in.Environment != "" {
			made = checkEnvironment(in.Environment)
		}
	}
	return firstError(
		CheckRequestID("request_id", in.RequestID),
		made,
		checkText("name", in.Name, MaxName),
		checkTTL(in.TTL),
		checkOneOf("on_expiry", in.OnExpiry, "", ExpiryDelete, ExpirySuspend),
		checkRestart(in.Restart),
		checkEnv(in.Env),
		checkLabels(in.Labels),
		in.Resources.Validate(),
		checkOneOf("egress", in.Egress, "", EgressInternet, EgressNone),
	)
}

// Validate checks each limit; zero is the default and passes.
func (r Resources) Validate() error {
	return firstError(
		checkRange("resources.cpu_millis", r.CPUMillis, 1, MaxCPUMillis),
		checkRange("resources.memory_bytes", r.MemoryBytes, MinMemoryBytes, MaxMemoryBytes),
		checkRange("resources.pids", r.PIDs, MinPIDs, MaxPIDs),
	)
}

// Validate checks the form of the id and the condition.
func (in MutateSandbox) Validate() error {
	return firstError(
		CheckID("id", PrefixSandbox, string(in.ID)),
		checkNotNegative("if_generation", in.IfGeneration),
	)
}

// Validate checks the form of the id, the time and the condition; how much the
// server allows depends on the sandbox's state.
func (in ExtendSandbox) Validate() error {
	if in.TTL == 0 {
		return bad("ttl", "is missing: say how long the sandbox shall live from now on at least")
	}
	return firstError(
		CheckID("id", PrefixSandbox, string(in.ID)),
		checkTTL(in.TTL),
		checkNotNegative("if_generation", in.IfGeneration),
	)
}

// Validate checks that there is something to set, and its form.
func (in SetSandboxLifetime) Validate() error {
	if in.TTL == 0 && in.OnExpiry == "" {
		return bad("ttl", "is missing, and so is on_expiry: there is nothing to set")
	}
	return firstError(
		CheckID("id", PrefixSandbox, string(in.ID)),
		checkTTL(in.TTL),
		checkOneOf("on_expiry", in.OnExpiry, "", ExpiryDelete, ExpirySuspend),
		checkNotNegative("if_generation", in.IfGeneration),
	)
}

// Validate checks the form of the version.
func (in WatchSandboxes) Validate() error {
	if len(in.After) > MaxPageToken || strings.ContainsFunc(in.After, invisible) {
		return bad("after", "is no version that an event carried")
	}
	return nil
}

// Validate checks the filters and the page.
func (in ListSandboxes) Validate() error {
	for _, state := range in.States {
		if _, known := SandboxTransitions()[state]; !known {
			return bad("states", "has %q, which is no state of a sandbox", shown(string(state)))
		}
	}
	return firstError(checkLabels(in.Labels), checkPage(in.PageSize, in.PageToken))
}

// Validate checks the form of the id and the offset.
func (in SandboxLog) Validate() error {
	return firstError(
		CheckID("id", PrefixSandbox, string(in.ID)),
		checkNotNegative("offset", in.Offset),
	)
}

// Validate checks the resource's id and the page.
func (in ListOperations) Validate() error {
	return firstError(
		checkResource(in.Resource),
		checkPage(in.PageSize, in.PageToken),
	)
}

// checkResource checks the id of a resource that has operations.
func checkResource(id string) error {
	for _, prefix := range []string{PrefixSession, PrefixBuild, PrefixCheckpoint} {
		if CheckID("resource", prefix, id) == nil {
			return nil
		}
	}
	return CheckID("resource", PrefixSandbox, id)
}

// Validate checks the command, its arguments and its surroundings.
func (in StartProcess) Validate() error {
	if in.RequestID != "" {
		if err := CheckRequestID("request_id", in.RequestID); err != nil {
			return err
		}
	}
	if in.Cwd != "" {
		if err := CheckPath("cwd", in.Cwd); err != nil {
			return err
		}
	}
	if in.Terminal != nil {
		if err := in.Terminal.Validate(); err != nil {
			return err
		}
	}
	if in.Report != ReportNone && in.RequestID == "" {
		return bad("request_id", "is empty: a process whose end is reported needs one")
	}
	return firstError(checkCommand(in.Command, in.Args), checkEnv(in.Env), CheckUser("user", in.User),
		checkOneOf("report", in.Report, ReportNone, ReportTask, ReportSetup))
}

// Validate checks that there is at least one character.
func (s TerminalSize) Validate() error {
	if s.Columns == 0 || s.Rows == 0 {
		return bad("terminal", "is %d by %d characters; both must be 1 to 65535", s.Columns, s.Rows)
	}
	return nil
}

// Validate checks the form of the id and the offsets.
func (in ReadOutput) Validate() error {
	return firstError(
		CheckID("process_id", PrefixProcess, string(in.Process)),
		checkNotNegative("stdout_offset", in.StdoutOffset),
		checkNotNegative("stderr_offset", in.StderrOffset),
	)
}

// Validate checks the form of the id and the length of the data.
func (in ProcessInput) Validate() error {
	if len(in.Data) > MaxProcessInput {
		return bad("data", "has %d bytes; at most %d fit in one call", len(in.Data), MaxProcessInput)
	}
	return CheckID("process_id", PrefixProcess, string(in.Process))
}

// Validate checks the path and the range.
func (in ReadFile) Validate() error {
	return firstError(
		CheckPath("path", in.Path),
		checkNotNegative("offset", in.Offset),
		checkNotNegative("length", in.Length),
	)
}

// Validate checks the path and the mode.
func (in WriteFile) Validate() error {
	return firstError(CheckPath("path", in.Path), CheckMode("mode", in.Mode))
}

// Validate checks the path.
func (in WatchDirectory) Validate() error { return CheckPath("path", in.Path) }

// CheckRequestID reports whether id is 1 to 128 visible ASCII characters, as an
// INVALID_ARGUMENT error that names the field (contract: A3).
func CheckRequestID(field, id string) error {
	switch {
	case id == "":
		return bad(field, "is empty; name this request by 1 to %d visible ASCII characters, and repeat it under the same name", MaxRequestID)
	case len(id) > MaxRequestID:
		return bad(field, "has %d bytes; at most %d are allowed", len(id), MaxRequestID)
	}
	if at := strings.IndexFunc(id, invisible); at >= 0 {
		return bad(field, "%q has a character at byte %d that is not visible ASCII", shown(id), at)
	}
	return nil
}

// CheckPath reports whether path is absolute, UTF-8, without NUL, at most 4095
// bytes long and made of names of at most 255, as an INVALID_ARGUMENT error
// that names the field.
func CheckPath(field, path string) error {
	switch {
	case path == "":
		return bad(field, "is empty; an absolute path is needed")
	case len(path) > MaxPath:
		return bad(field, "has %d bytes; at most %d are allowed", len(path), MaxPath)
	case !strings.HasPrefix(path, "/"):
		return bad(field, "%q is relative; an absolute path is needed", shown(path))
	case strings.ContainsRune(path, 0):
		return bad(field, "%q contains a NUL", shown(path))
	case !utf8.ValidString(path):
		return bad(field, "%q is not UTF-8", shown(path))
	}
	for name := range strings.SplitSeq(path, "/") {
		if len(name) > MaxPathName {
			return bad(field, "has a name of %d bytes; at most %d are allowed", len(name), MaxPathName)
		}
	}
	return nil
}

// CheckMode reports whether mode is permission bits only.
func CheckMode(field string, mode uint32) error {
	if mode > MaxMode {
		return bad(field, "is %#o; only permission bits, at most %#o, are allowed", mode, MaxMode)
	}
	return nil
}

// CheckSignal reports whether name has the form of a signal's name, without
// SIG; whether the guest knows it is the guest's to say.
func CheckSignal(field, name string) error {
	if name == "" || len(name) > 16 || strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-") != "" {
		return bad(field, "%q is no signal's name; TERM, KILL or INT are, for example", shown(name))
	}
	return nil
}

func checkEnvironment(reference string) error {
	switch {
	case reference == "":
		return bad("environment", `is empty; "base" and "debian" always exist`)
	case len(reference) > MaxEnvironment:
		return bad("environment", "has %d bytes; at most %d are allowed", len(reference), MaxEnvironment)
	case strings.ContainsFunc(reference, invisible):
		return bad("environment", "%q has a character that is not visible ASCII", shown(reference))
	}
	return nil
}

func checkTTL(ttl time.Duration) error {
	if ttl != 0 && (ttl < MinTTL || ttl > LongestTTL) {
		return bad("ttl", "is %s; it must be between %s and %s, or less where the server says so", ttl, MinTTL, LongestTTL)
	}
	return nil
}

func checkRestart(policy Restart) error {
	return checkOneOf("restart", policy, "", RestartNone, RestartFresh, RestartFromCheckpoint)
}

func checkCommand(command string, args []string) error {
	if command == "" {
		return bad("command", "is empty")
	}
	if len(args) > MaxArgs {
		return bad("args", "has %d entries; at most %d are allowed", len(args), MaxArgs)
	}
	total := 0
	for i, arg := range append([]string{command}, args...) {
		field := "command"
		if i > 0 {
			field = fmt.Sprintf("args[%d]", i-1)
		}
		if err := firstError(checkLength(field, arg, MaxArg), checkValue(field, arg)); err != nil {
			return err
		}
		total += len(arg)
	}
	return checkTotal("args", total, MaxCommandBytes)
}

func checkEnv(env map[string]string) error {
	if len(env) > MaxEnv {
		return bad("env", "has %d variables; at most %d are allowed", len(env), MaxEnv)
	}
	total := 0
	for _, key := range sortedKeys(env) {
		if !isVariable(key) {
			return bad("env", "has a variable %q; names are made of letters, digits and _, and begin with no digit", shown(key))
		}
		if err := checkValue("env["+shown(key)+"]", env[key]); err != nil {
			return err
		}
		total += len(key) + len(env[key])
	}
	return checkTotal("env", total, MaxEnvBytes)
}

func checkLabels(labels map[string]string) error {
	if len(labels) > MaxLabels {
		return bad("labels", "has %d labels; at most %d are allowed", len(labels), MaxLabels)
	}
	for _, key := range sortedKeys(labels) {
		if key == "" || strings.ContainsFunc(key, invisible) || strings.Contains(key, "=") {
			return bad("labels", "has a key %q; keys are visible ASCII characters other than =", shown(key))
		}
		err := firstError(
			checkLength("labels key", key, MaxLabelLength),
			checkText("labels["+shown(key)+"]", labels[key], MaxLabelLength),
		)
		if err != nil {
			return err
		}
	}
	return nil
}

func checkPage(size int, token string) error {
	if size < 0 || size > MaxPageSize {
		return bad("page_size", "is %d; it must be between 0 (for %d) and %d", size, DefaultPageSize, MaxPageSize)
	}
	if len(token) > MaxPageToken || strings.ContainsFunc(token, invisible) {
		return bad("page_token", "is none that a list returned")
	}
	return nil
}

// checkText checks what people read: UTF-8, one line, bounded; empty passes.
func checkText(field, text string, limit int) error {
	if err := firstError(checkLength(field, text, limit), checkValue(field, text)); err != nil {
		return err
	}
	if strings.ContainsFunc(text, unicode.IsControl) {
		return bad(field, "%q has a control character", shown(text))
	}
	return nil
}

// checkValue checks what a process receives: UTF-8 without NUL.
func checkValue(field, value string) error {
	if !utf8.ValidString(value) {
		return bad(field, "is not UTF-8")
	}
	if strings.ContainsRune(value, 0) {
		return bad(field, "contains a NUL")
	}
	return nil
}

func checkLength(field, value string, limit int) error {
	if len(value) > limit {
		return bad(field, "has %d bytes; at most %d are allowed", len(value), limit)
	}
	return nil
}

func checkTotal(field string, total, limit int) error {
	if total > limit {
		return bad(field, "has %d bytes in all; at most %d are allowed", total, limit)
	}
	return nil
}

func checkRange(field string, value, least, most int64) error {
	if value != 0 && (value < least || value > most) {
		return bad(field, "is %d; it must be between %d and %d", value, least, most)
	}
	return nil
}

func checkNotNegative(field string, value int64) error {
	if value < 0 {
		return bad(field, "is %d; it must not be negative", value)
	}
	return nil
}

func checkOneOf[T ~string](field string, value T, allowed ...T) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	names := make([]string, 0, len(allowed))
	for _, name := range allowed {
		if name != "" {
			names = append(names, string(name))
		}
	}
	return bad(field, "is %q; it must be one of %s", shown(string(value)), strings.Join(names, ", "))
}

func isVariable(name string) bool {
	for i, r := range name {
		letter := r == '_' || 'A' <= r && r <= 'Z' || 'a' <= r && r <= 'z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return name != ""
}

func invisible(r rune) bool { return r <= ' ' || r > '~' }

// shown bounds what an error repeats of a bad input.
func shown(value string) string {
	const most = 64
	if len(value) <= most {
		return value
	}
	return strings.ToValidUTF8(value[:most], "") + "…"
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
