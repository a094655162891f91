package image

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// apt is how the host is configured to fetch packages.
type apt struct {
	targets []target
	options []string // "Acquire::http::Proxy \"…\";"
}

// target is one component of one release on one mirror.
type target struct {
	uri, release, component, signedBy string
}

// readApt asks apt itself, which knows every form of its configuration. A host
// without apt has none: mmdebstrap then knows a mirror of its own.
func readApt(ctx context.Context) (apt, error) {
	var a apt
	const format = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(SIGNED_BY)"
	out, err := output(ctx, "apt-get", "indextargets", "--format", format, "Created-By: Packages")
	if err != nil {
		return apt{}, err
	}
	for line := range strings.Lines(out) {
		parts := strings.Split(strings.TrimSpace(line), "|")
		if len(parts) != 4 {
			continue
		}
		if strings.HasPrefix(parts[3], "$(") { // this apt does not know the variable
			parts[3] = ""
		}
		a.targets = append(a.targets, target{uri: parts[0], release: parts[1], component: parts[2], signedBy: parts[3]})
	}
	out, err = output(ctx, "apt-config", "dump", "Acquire")
	if err != nil {
		return apt{}, err
	}
	for line := range strings.Lines(out) {
		key, _, _ := strings.Cut(line, " ")
		if strings.EqualFold(key, "Acquire::http::Proxy") || strings.EqualFold(key, "Acquire::https::Proxy") {
			a.options = append(a.options, strings.TrimSpace(line))
		}
	}
	return a, nil
}

func output(ctx context.Context, name string, args ...string) (string, error) {
	if _, err := exec.LookPath(name); err != nil {
		return "", nil //nolint:nilerr // a host without apt
	}
	out, err := exec.CommandContext(ctx, name, args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return string(out), nil
}

// sources names where the suite comes from, in apt's one-line form. The host's
// own suite comes with its updates and security fixes; for another one, the
// host's mirror is asked for it.
func (a apt) sources(suite string) []string {
	var own, other []string
	seen := map[string]bool{}
	add := func(list *[]string, t target, release string) {
		signed := ""
		if t.signedBy != "" {
			signed = "[signed-by=" + t.signedBy + "] "
		}
		line := "deb " + signed + t.uri + " " + release + " main"
		if t.component == "main" && !seen[line] {
			seen[line] = true
			*list = append(*list, line)
		}
	}
	for _, t := range a.targets {
		switch base, _, variant := strings.Cut(t.release, "-"); {
		case base == suite:
			add(&own, t, t.release)
		case !variant && strings.HasSuffix(strings.TrimSuffix(t.uri, "/"), "/debian"):
			add(&other, t, suite)
		}
	}
	if len(own) > 0 {
		return own
	}
	return other
}
