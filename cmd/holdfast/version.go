package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is what this program is.
type version struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Go      string `json:"go"`
	System  string `json:"system"`
}

func newVersionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show which version this is",
		Args:  exactly(),
		RunE: func(*cobra.Command, []string) error {
			v := readVersion()
			if a.output == "json" {
				line, err := json.Marshal(v)
				if err != nil {
					return fmt.Errorf("write the version as JSON: %w", err)
				}
				return write(a.out, append(line, '\n'))
			}
			return write(a.out, fmt.Appendf(nil, "holdfast %s %s (%s, %s)\n", v.Version, orWord(v.Commit, "unknown commit"), v.Go, v.System))
		},
	}
}

func readVersion() version {
	v := version{Version: "devel", Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" && info.Main.Version != "(devel)" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v.Commit = s.Value
		}
	}
	return v
}
