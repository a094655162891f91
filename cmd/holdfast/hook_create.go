package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newHookCreateCommand(a *app) *cobra.Command {
	var in holdfast.CreateHook
	var kind, file, secretFile string
	cmd := &cobra.Command{
		Use:   "create NAME -f RULES.yaml",
		Short: "Make a source of webhooks at /hooks/NAME, and show the secret that its provider signs with, this once",
		Long: `Make a source of webhooks at /hooks/NAME. The rule file says which events make a session, a task or a sandbox of the project.
Give the provider the URL and the secret; a secret of the provider's own goes into --secret-file. A repeat with the same input
changes nothing; to change the rules, delete the hook and create it again: what came by then stays known.`,
		Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if file == "" {
				return usage("-f is missing: the file of the rules, or - for standard input")
			}
			rules, err := a.input(file)
			if err != nil {
				return err
			}
			in.Name, in.Kind, in.Rules = args[0], holdfast.HookKind(strings.ToUpper(kind)), rules
			if secretFile != "" {
				secret, err := a.input(secretFile)
				if err != nil {
					return err
				}
				in.Secret = strings.TrimRight(secret, "\r\n")
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			h, err := c.CreateHook(cmd.Context(), in)
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.json(h)
			}
			if err := a.hooks(holdfast.HookPage{Hooks: []holdfast.Hook{h.Hook}}); err != nil || h.Secret == "" {
				return err
			}
			return write(a.out, []byte("secret, shown this once: "+h.Secret+"\n"))
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&file, "file", "f", "", "the rule file, YAML; - is standard input")
	flags.StringVar(&kind, "kind", "github", "github, or standard for any Standard Webhooks sender")
	flags.StringVar(&in.Project, "project", string(holdfast.ProjectDefault), "the project in which its actions act, by id or name")
	flags.StringVar(&secretFile, "secret-file", "", "what the provider signs with; without it a new one is made")
	return cmd
}

// input reads a file, or standard input where it is named -.
func (a *app) input(file string) (string, error) {
	if file != "-" {
		raw, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("read the file: %w", err)
		}
		return string(raw), nil
	}
	raw, err := io.ReadAll(io.LimitReader(a.in, holdfast.MaxHookRules+1))
	if err != nil {
		return "", fmt.Errorf("read standard input: %w", err)
	}
	return string(raw), nil
}
