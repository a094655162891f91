package holdfast

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Limits of recipes.
const (
	MaxEnvironmentName = 63       // bytes
	MaxScript          = 64 << 10 // bytes of a setup or hook
	MaxRecipeFiles     = 256      // files of a recipe
	MaxRecipeBytes     = 1 << 20  // bytes of them together, in one recipe
	MaxRecipePorts     = 64       // ports of a recipe
	MaxBuildLog        = 16 << 20 // bytes of a build's log that are kept: the last ones
	MaxRepositoryURL   = 2048     // bytes
	MaxRef             = 256      // bytes of a git reference
	MinBuildTimeout    = time.Second
)

// The environments that exist without a recipe.
const (
	EnvironmentBase   = "base"
	EnvironmentDebian = "debian"
)

// EnvironmentName splits what a sandbox or session is made of into the name of an
// environment and its version (0: the newest). It is false for what needs no recipe:
// "base", "debian", and references such as "debian:bookworm" or "oci:…".
func EnvironmentName(reference string) (name string, version int64, ok bool) {
	if reference == EnvironmentBase || reference == EnvironmentDebian || strings.Contains(reference, ":") {
		return "", 0, false
	}
	name, digits, versioned := strings.Cut(reference, "@")
	if versioned {
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || n < 1 || strconv.FormatInt(n, 10) != digits {
			return "", 0, false
		}
		version = n
	}
	return name, version, isEnvironmentName(name)
}

func isEnvironmentName(name string) bool {
	return name != "" && len(name) <= MaxEnvironmentName && name != EnvironmentBase && name != EnvironmentDebian &&
		strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") == "" && !strings.ContainsAny(name[:1], "-_.")
}

func checkEnvironmentName(field, name string) error {
	switch {
	case isEnvironmentName(name):
		return nil
	case name == EnvironmentBase || name == EnvironmentDebian:
		return bad(field, "%q exists without a recipe, and cannot get one: use another name, and it as the base", name)
	}
	return bad(field, "%q is no environment's name: 1 to %d lower-case letters, digits and - _ . between them", shown(name), MaxEnvironmentName)
}

// CheckEnvironmentName checks NAME or NAME@VERSION, as an INVALID_ARGUMENT error that
// names the field.
func CheckEnvironmentName(field, reference string) error {
	if _, _, ok := EnvironmentName(reference); ok {
		return nil
	}
	if name, _, versioned := strings.Cut(reference, "@"); versioned && isEnvironmentName(name) {
		return bad(field, "%q names no version: versions are numbers from 1 on, as in %s@1", shown(reference), name)
	}
	return checkEnvironmentName(field, reference)
}

// Validate checks the form of every field.
func (in CreateEnvironment) Validate() error {
	return firstError(checkEnvironmentName("name", in.Name), in.Recipe.Validate())
}

// Validate checks the form of every field.
func (in BuildEnvironment) Validate() error {
	return firstError(CheckRequestID("request_id", in.RequestID), CheckEnvironmentName("environment", in.Environment))
}

// Validate checks the page.
func (in ListEnvironments) Validate() error { return checkPage(in.PageSize, in.PageToken) }

// Validate checks the filter and the page.
func (in ListBuilds) Validate() error {
	if in.Environment != "" {
		if err := checkEnvironmentName("environment", in.Environment); err != nil {
			return err
		}
	}
	return checkPage(in.PageSize, in.PageToken)
}

// Validate checks the form of the id and the offset.
func (in BuildLog) Validate() error {
	return firstError(CheckID("id", PrefixBuild, string(in.ID)), checkNotNegative("offset", in.Offset))
}

// Validate checks the form of every field; whether the base exists is the server's to
// say. A field is named as the YAML names it.
func (r Recipe) Validate() error {
	return firstError(
		r.checkBase(),
		checkScript("setup", r.Setup),
		r.checkFiles(),
		checkEnv(r.Env),
		r.checkWorkdir(),
		CheckUser("user", r.User),
		r.Resources.Validate(),
		r.checkPorts(),
		checkOneOf("egress", r.Egress, "", EgressInternet, EgressNone),
		checkScript("hooks.on_suspend", r.Hooks.OnSuspend),
		checkScript("hooks.on_resume", r.Hooks.OnResume),
		checkScript("hooks.on_delete", r.Hooks.OnDelete),
		r.Repository.Validate(),
		checkRestart(r.Restart),
		r.checkTimeout(),
	)
}

func (r Recipe) checkBase() error {
	switch {
	case r.Base == "":
		return bad("base", `is missing: "base", "debian", "debian:SUITE", "oci:REFERENCE", "tar:PATH" or "dir:PATH"`)
	case len(r.Base) > MaxEnvironment:
		return bad("base", "has %d bytes; at most %d are allowed", len(r.Base), MaxEnvironment)
	case strings.ContainsFunc(r.Base, invisible):
		return bad("base", "%q has a character that is not visible ASCII", shown(r.Base))
	}
	if _, _, named := EnvironmentName(r.Base); named {
		return bad("base", `%q is no base: an environment is made of "base", "debian", "debian:SUITE", "oci:REFERENCE", "tar:PATH" or "dir:PATH"`, shown(r.Base))
	}
	return nil
}

func checkScript(field, script string) error {
	return firstError(checkLength(field, script, MaxScript), checkValue(field, script))
}

func (r Recipe) checkFiles() error {
	if len(r.Files) > MaxRecipeFiles {
		return bad("files", "has %d files; at most %d are allowed", len(r.Files), MaxRecipeFiles)
	}
	total, paths := 0, map[string]bool{}
	for i, f := range r.Files {
		field := fmt.Sprintf("files[%d]", i)
		if err := firstError(CheckPath(field+".path", f.Path), CheckMode(field+".mode", f.Mode), checkUTF8(field+".content", f.Content)); err != nil {
			return err
		}
		if strings.HasSuffix(f.Path, "/") {
			return bad(field+".path", "%q is a directory", shown(f.Path))
		}
		if paths[f.Path] {
			return bad(field+".path", "%q is written twice", shown(f.Path))
		}
		paths[f.Path] = true
		total += len(f.Path) + len(f.Content)
	}
	return checkTotal("files", total, MaxRecipeBytes)
}

func (r Recipe) checkWorkdir() error {
	if r.Workdir == "" {
		return nil
	}
	return CheckPath("workdir", r.Workdir)
}

func (r Recipe) checkPorts() error {
	if len(r.Ports) > MaxRecipePorts {
		return bad("ports", "has %d ports; at most %d are allowed", len(r.Ports), MaxRecipePorts)
	}
	seen := map[int]bool{}
	for _, port := range r.Ports {
		if port < 1 || port > 65535 || seen[port] {
			return bad("ports", "has %d; each must be between 1 and 65535, and there once", port)
		}
		seen[port] = true
	}
	return nil
}

func (r Recipe) checkTimeout() error {
	if r.Timeout != 0 && (r.Timeout < MinBuildTimeout || r.Timeout > MaxBuildTimeout) {
		return bad("build.timeout", "is %s; it must be between %s and %s", r.Timeout, MinBuildTimeout, MaxBuildTimeout)
	}
	return nil
}

// CheckUser reports whether user names one: a name of the guest's /etc/passwd, or a
// number, each with ":" and a group if need be. "" passes: it is the guest's default.
func CheckUser(field, user string) error {
	if user == "" {
		return nil
	}
	name, group, grouped := strings.Cut(user, ":")
	for i, part := range []string{name, group} {
		if i == 1 && !grouped {
			break
		}
		if part == "" || len(part) > 32 || part[0] == '-' ||
			strings.Trim(part, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") != "" {
			return bad(field, "%q is no user: a name or number, with :GROUP if need be", shown(user))
		}
	}
	return nil
}

// Validate checks that the URL is one that git fetches from, and that neither it nor
// the ref is taken for an option; nil passes.
func (r *Repository) Validate() error {
	switch {
	case r == nil:
		return nil
	case r.URL == "" || len(r.URL) > MaxRepositoryURL || strings.ContainsFunc(r.URL, invisible):
		return bad("repository.url", "%q must be a URL of 1 to %d visible characters", shown(r.URL), MaxRepositoryURL)
	case len(r.Ref) > MaxRef || strings.HasPrefix(r.Ref, "-") || strings.ContainsFunc(r.Ref, invisible):
		return bad("repository.ref", "%q must be a branch, tag or commit of at most %d visible characters", shown(r.Ref), MaxRef)
	}
	u, err := url.Parse(r.URL)
	if err != nil || u.Host == "" {
		return bad("repository.url", "%q is no URL with a host, such as https://example.com/repository.git", shown(r.URL))
	}
	switch u.Scheme {
	case "https", "http", "ssh", "git":
		return nil
	}
	return bad("repository.url", "%q must be a URL of https, http, ssh or git", shown(r.URL))
}

func checkUTF8(field, content string) error {
	if strings.ToValidUTF8(content, "") != content {
		return bad(field, "is not UTF-8")
	}
	return nil
}
