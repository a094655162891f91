package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	goruntime "runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/layer"
)

// RefOCI is what a reference to an image in a registry begins with, as in
// "oci:registry.example/team/tool:1.2" or "oci:registry.example/tool@sha256:…".
const RefOCI = "oci:"

// ociVersion is raised when the same manifest is unpacked to something else.
const ociVersion = "oci/2"

// maxLayers bounds an image's layers.
const maxLayers = 500

// oci is the recipe of an image in a registry: its layers for this machine's
// platform, one over the other.
type oci struct {
	ref    string // behind the prefix
	limits layer.Limits
	says   holdfast.ProcessDefaults // once it is built
}

// defaults is what its configuration says of processes.
func (o *oci) defaults() holdfast.ProcessDefaults { return o.says }

func parseOCI(ref string) (name.Reference, error) {
	parsed, err := name.ParseReference(ref)
	if err != nil {
		return nil, holdfast.E(holdfast.InvalidArgument, holdfast.ReasonNoSuchImage,
			"%q is no reference to an image: REGISTRY/REPOSITORY:TAG or REGISTRY/REPOSITORY@sha256:DIGEST is expected", short(RefOCI+ref)).Because(err)
	}
	return parsed, nil
}

func (o *oci) options(ctx context.Context) []remote.Option {
	return []remote.Option{
		remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain),
		remote.WithPlatform(v1.Platform{OS: "linux", Architecture: goruntime.GOARCH}),
		remote.WithRetryBackoff(remote.Backoff{Steps: 1}), // only the outermost caller retries (trap T22)
		remote.WithUserAgent("holdfast"),
	}
}

// digest is of the manifest that the pinned reference names, which needs no registry:
// a tag is pinned first (Pin), and one that was moved is another image.
func (o *oci) digest(context.Context) (string, error) {
	ref, err := parseOCI(o.ref)
	if err != nil {
		return "", err
	}
	if pinned, ok := ref.(name.Digest); ok {
		return digestOf(ociVersion, pinned.DigestStr(), goruntime.GOARCH), nil
	}
	return "", holdfast.E(holdfast.InvalidArgument, holdfast.ReasonNoSuchImage, "%q has no digest", short(RefOCI+o.ref))
}

// Pin returns the reference with the digest of what it names now, so that it means
// the same for ever. What is not in a registry is returned as it is.
func Pin(ctx context.Context, ref string) (string, error) {
	behind, ok := strings.CutPrefix(ref, RefOCI)
	if !ok {
		return ref, nil
	}
	parsed, err := parseOCI(behind)
	if err != nil {
		return "", err
	}
	if _, pinned := parsed.(name.Digest); pinned {
		return ref, nil
	}
	o := &oci{ref: behind}
	found, err := remote.Get(parsed, o.options(ctx)...)
	if err != nil {
		return "", o.failed(ctx, err)
	}
	return RefOCI + parsed.Context().Digest(found.Digest.String()).String(), nil
}

func (o *oci) build(ctx context.Context, root string, progress func(string)) error {
	ref, err := parseOCI(o.ref)
	if err != nil {
		return err
	}
	progress("reading the manifest of " + short(o.ref))
	image, err := remote.Image(ref, o.options(ctx)...)
	if err != nil {
		return o.failed(ctx, err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		return o.failed(ctx, err)
	}
	if config.Architecture != "" && config.Architecture != goruntime.GOARCH {
		return o.otherPlatform(nil)
	}
	layers, err := image.Layers()
	if err != nil {
		return o.failed(ctx, err)
	}
	if len(layers) > maxLayers || len(layers) != len(config.RootFS.DiffIDs) {
		return o.refused("it has %d layers and %d digests of their contents; at most %d are taken", len(layers), len(config.RootFS.DiffIDs), maxLayers)
	}
	if o.says, err = o.processDefaults(config.Config); err != nil {
		return err
	}
	left := o.limits
	for i, l := range layers {
		progress(fmt.Sprintf("%s: layer %d of %d", short(o.ref), i+1, len(layers)))
		stats, err := o.unpack(ctx, root, l, config.RootFS.DiffIDs[i], left)
		if err != nil {
			return err
		}
		left.Bytes, left.Entries = max(1, left.Bytes-stats.Bytes), max(1, left.Entries-stats.Entries)
	}
	return nil
}

// Limits of an image's variables. They are with the image's contents, so that a
// recipe's own do not count in them.
const (
	maxVariables     = 1024
	maxVariableBytes = 128 << 10 // together
)

// processDefaults takes over the variables, the user and the working directory. The
// entrypoint and the command are not: the guest agent is what an instance runs.
func (o *oci) processDefaults(config v1.Config) (holdfast.ProcessDefaults, error) {
	out := holdfast.ProcessDefaults{User: config.User}
	total := 0
	for _, entry := range config.Env {
		key, value, ok := strings.Cut(entry, "=")
		if total += len(entry); total > maxVariableBytes || len(out.Env) == maxVariables {
			return out, o.refused("it has more than %d variables, or more than %d bytes of them", maxVariables, maxVariableBytes)
		}
		if !ok || key == "" || strings.ContainsRune(entry, 0) {
			return out, o.refused("%q is no variable", short(entry))
		}
		if out.Env == nil {
			out.Env = map[string]string{}
		}
		out.Env[key] = value
	}
	if err := holdfast.CheckUser("user", config.User); err != nil {
		return out, o.refused("its user: %s", holdfast.AsError(err).Message)
	}
	if config.WorkingDir != "" {
		out.Workdir = path.Clean("/" + config.WorkingDir)
		if err := holdfast.CheckPath("workdir", out.Workdir); err != nil {
			return out, o.refused("its working directory: %s", holdfast.AsError(err).Message)
		}
	}
	return out, nil
}

// unpack unpacks one layer and holds it against the digest of its contents.
func (o *oci) unpack(ctx context.Context, root string, l v1.Layer, want v1.Hash, limits layer.Limits) (stats layer.Stats, err error) {
	content, err := l.Uncompressed()
	if err != nil {
		return layer.Stats{}, o.failed(ctx, err)
	}
	defer func() {
		if closeErr := content.Close(); closeErr != nil && err == nil {
			err = o.failed(ctx, closeErr)
		}
	}()
	sum := sha256.New()
	read := io.TeeReader(content, sum)
	if stats, err = unpackWhole(ctx, root, read, limits); err != nil {
		return stats, o.failed(ctx, err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != want.Hex {
		return stats, o.refused("a layer's contents have the digest sha256:%s, and the image says %s", got, want)
	}
	return stats, nil
}

// maxPadding bounds what is read behind the end of a tar, in bytes: blocks of
// zeros.
const maxPadding = 16 << 20

// unpackWhole unpacks a tar and reads on to the end of its source: what is behind
// the tar's end counts in a digest, and a compression's checksum comes last.
func unpackWhole(ctx context.Context, root string, r io.Reader, limits layer.Limits) (layer.Stats, error) {
	stats, err := layer.Unpack(ctx, root, r, layer.Remove, limits)
	if err == nil {
		_, err = io.Copy(io.Discard, io.LimitReader(r, maxPadding))
	}
	return stats, err
}

func (o *oci) refused(format string, args ...any) error {
	return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonImageFailed, "the image %q is refused: %s", short(RefOCI+o.ref), fmt.Sprintf(format, args...))
}

func (o *oci) otherPlatform(err error) error {
	return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonNoSuchImage, "the image %q is not made for linux/%s", short(RefOCI+o.ref), goruntime.GOARCH).Because(err)
}

// failed tells what will not pass (no such image, no right to it, an image that
// cannot be unpacked) from a registry that cannot be reached.
func (o *oci) failed(ctx context.Context, err error) error {
	var domain *holdfast.Error
	var answered *transport.Error
	ref := short(RefOCI + o.ref)
	switch {
	case errors.As(err, &domain):
		return err
	case ctx.Err() != nil:
		return fmt.Errorf("image %s: %w", ref, ctx.Err())
	case errors.Is(err, layer.ErrMalformed):
		return o.refused("%s", err)
	case errors.As(err, &answered):
		switch {
		case answered.StatusCode == http.StatusNotFound:
			return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonNoSuchImage, "the registry has no image %q", ref).Because(err)
		case answered.StatusCode == http.StatusUnauthorized, answered.StatusCode == http.StatusForbidden:
			return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonImageFailed,
				"the registry does not give out %q: it does not exist, or the host needs to log in to the registry", ref).Because(err)
		case answered.StatusCode < 500 && answered.StatusCode != http.StatusTooManyRequests && answered.StatusCode != http.StatusRequestTimeout:
			return o.refused("%s", err)
		}
	case strings.Contains(err.Error(), "no child with platform"):
		return o.otherPlatform(err)
	case isDamage(err):
		return o.refused("%s", err)
	}
	return holdfast.E(holdfast.Unavailable, holdfast.ReasonImageFailed, "the registry of %q cannot be reached: %s", ref, err).Because(err)
}
