package clienttest

import (
	"context"
	"maps"
	"reflect"
	"slices"

	"github.com/holdfast-dev/holdfast"
)

// CreateEnvironment keeps a recipe, and counts its versions.
func (f *Fake) CreateEnvironment(ctx context.Context, caller holdfast.Caller, in holdfast.CreateEnvironment) (out holdfast.Environment, err error) {
	if err := in.Validate(); err != nil {
		return out, err
	}
	err = f.do(ctx, Call{"CreateEnvironment", in}, func() error {
		e, known := f.environments[in.Name]
		if !known {
			e = &holdfast.Environment{ID: holdfast.EnvironmentID(f.ids.New(holdfast.PrefixEnvironment)), Project: caller.Project, Name: in.Name, CreatedAt: f.now()}
			f.environments[in.Name] = e
		}
		if !known || !reflect.DeepEqual(e.Recipe, in.Recipe) {
			e.Version, e.Recipe, e.UpdatedAt = e.Version+1, in.Recipe, f.now()
		}
		out = *e
		return nil
	})
	return out, err
}

// GetEnvironment reads a record by its name.
func (f *Fake) GetEnvironment(ctx context.Context, _ holdfast.Caller, name string) (out holdfast.Environment, err error) {
	err = f.do(ctx, Call{"GetEnvironment", name}, func() error {
		e, known := f.environments[name]
		if !known {
			return noEnvironment(name)
		}
		out = *e
		return nil
	})
	return out, err
}

func noEnvironment(name string) error {
	return holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "no environment %s", name).With("environment", name)
}

// ListEnvironments lists by name, in one page.
func (f *Fake) ListEnvironments(ctx context.Context, _ holdfast.Caller, in holdfast.ListEnvironments) (page holdfast.EnvironmentPage, err error) {
	err = f.do(ctx, Call{"ListEnvironments", in}, func() error {
		for _, name := range slices.Sorted(maps.Keys(f.environments)) {
			if f.environments[name].DeletedAt.IsZero() {
				page.Environments = append(page.Environments, *f.environments[name])
			}
		}
		return nil
	})
	return page, err
}

// DeleteEnvironment marks a record.
func (f *Fake) DeleteEnvironment(ctx context.Context, _ holdfast.Caller, name string) (out holdfast.Environment, err error) {
	err = f.do(ctx, Call{"DeleteEnvironment", name}, func() error {
		e, known := f.environments[name]
		if !known {
			return noEnvironment(name)
		}
		if e.DeletedAt.IsZero() {
			e.DeletedAt = f.now()
		}
		out = *e
		return nil
	})
	return out, err
}

// BuildEnvironment makes a build that is READY at once, or FAILED where the setup is
// "false".
func (f *Fake) BuildEnvironment(ctx context.Context, caller holdfast.Caller, in holdfast.BuildEnvironment) (out holdfast.Build, err error) {
	if err := in.Validate(); err != nil {
		return out, err
	}
	err = f.do(ctx, Call{"BuildEnvironment", in}, func() error {
		if id, known := f.buildsOf[in.RequestID]; known {
			out = *f.builds[id]
			return nil
		}
		e, known := f.environments[in.Environment]
		if !known {
			return noEnvironment(in.Environment)
		}
		b := &holdfast.Build{ID: holdfast.BuildID(f.ids.New(holdfast.PrefixBuild)), Project: caller.Project, Environment: e.ID, Name: e.Name, Version: e.Version,
			State: holdfast.BuildReady, Image: e.Recipe.Base, CreatedAt: f.now(), UpdatedAt: f.now(), FinishedAt: f.now()}
		if e.Recipe.Setup == "false" {
			b.State = holdfast.BuildFailed
			b.Failure = &holdfast.Failure{Reason: holdfast.ReasonSetupFailed, Message: "the setup ended with exit code 1", LogTail: "the log\n"}
		} else {
			e.Build = b.ID
		}
		f.builds[b.ID], f.buildsOf[in.RequestID] = b, b.ID
		out = *b
		return nil
	})
	return out, err
}

// GetBuild reads a record.
func (f *Fake) GetBuild(ctx context.Context, _ holdfast.Caller, id holdfast.BuildID) (out holdfast.Build, err error) {
	err = f.do(ctx, Call{"GetBuild", id}, func() error {
		b, known := f.builds[id]
		if !known {
			return unknown("build", string(id))
		}
		out = *b
		return nil
	})
	return out, err
}

// ListBuilds lists newest first, in one page.
func (f *Fake) ListBuilds(ctx context.Context, _ holdfast.Caller, in holdfast.ListBuilds) (page holdfast.BuildPage, err error) {
	err = f.do(ctx, Call{"ListBuilds", in}, func() error {
		for _, id := range slices.Backward(slices.Sorted(maps.Keys(f.builds))) {
			if b := f.builds[id]; in.Environment == "" || in.Environment == b.Name {
				page.Builds = append(page.Builds, *b)
			}
		}
		return nil
	})
	return page, err
}

// StreamBuildLog yields one line.
func (f *Fake) StreamBuildLog(ctx context.Context, _ holdfast.Caller, in holdfast.BuildLog, yield func(holdfast.OutputChunk) error) error {
	err := f.do(ctx, Call{"StreamBuildLog", in}, func() error {
		if _, known := f.builds[in.ID]; !known {
			return unknown("build", string(in.ID))
		}
		return nil
	})
	log := "the log\n"
	if err != nil || in.Offset >= int64(len(log)) {
		return err
	}
	return yield(holdfast.OutputChunk{Stream: holdfast.Stdout, Offset: in.Offset, Data: []byte(log[in.Offset:])})
}
