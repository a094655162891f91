package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/environment"
)

func newEnvCreateCommand(a *app) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "create -f FILE",
		Short: "Create an environment, or its next version, from a file of YAML",
		Long: `Create an environment from a recipe. Its name keys it: the same recipe again is the same version, another one is the
next. Nothing is built yet: holdfast env build NAME does that.

The file has name and base (base, debian, debian:SUITE, oci:REFERENCE, tar:PATH, dir:PATH), and if need be: setup (a
shell script), files (a list of path, content, mode), env, workdir, user, resources (cpu, memory, pids), ports, egress
(internet or none), hooks (on_suspend, on_resume, on_delete), repository (url, ref), restart (none or fresh) and build
(timeout). What it does not know is an error that names the line.`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return usage("-f FILE is missing: the recipe, or - for standard input")
			}
			text, err := a.readRecipe(file)
			if err != nil {
				return err
			}
			in, err := environment.Parse(text)
			if err != nil {
				return hintError{err, "correct " + file + ", then run this again"}
			}
			c, err := a.patiently()
			if err != nil {
				return err
			}
			e, err := c.CreateEnvironment(cmd.Context(), in)
			if err != nil {
				return err
			}
			return a.environment(e)
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "the recipe; - is standard input")
	return cmd
}

func (a *app) readRecipe(file string) (text []byte, err error) {
	in := a.in
	if file != "-" {
		opened, err := os.Open(file)
		if err != nil {
			return nil, fmt.Errorf("read the recipe: %w", err)
		}
		defer opened.Close() //nolint:errcheck // it is only read
		in = opened
	}
	if text, err = io.ReadAll(io.LimitReader(in, environment.MaxBytes+1)); err != nil {
		return nil, fmt.Errorf("read the recipe: %w", err)
	}
	return text, nil
}
