package main

import (
	"fmt"
	"io/fs"
	"path"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newLsCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "ls ID PATH",
		Short: "List a directory of a sandbox",
		Args:  exactly("ID", "PATH"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := holdfast.CheckID("ID", holdfast.PrefixSandbox, args[0]); err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			files, err := c.ListDirectory(cmd.Context(), holdfast.SandboxID(args[0]), args[1])
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.json(files)
			}
			rows := make([][]string, len(files))
			for i, f := range files {
				name := path.Base(f.Path)
				if f.Kind == holdfast.FileSymlink {
					name += " -> " + f.Target
				}
				rows[i] = []string{modeOf(f), fmt.Sprint(f.UID), fmt.Sprint(f.GID), fmt.Sprint(f.Size), stamp(f.ModifiedAt), name}
			}
			return a.table("MODE UID GID SIZE MODIFIED NAME", rows)
		},
	}
}

// modeOf writes a mode as ls does.
func modeOf(f holdfast.FileInfo) string {
	kind := map[holdfast.FileKind]string{holdfast.FileDirectory: "d", holdfast.FileSymlink: "l", holdfast.FileOther: "?"}[f.Kind]
	return orWord(kind, "-") + fs.FileMode(f.Mode & 0o777).String()[1:]
}
