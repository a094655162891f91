package rpc_test

import (
	"context"
	"testing"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/rpc"
)

// taskEcho answers every call about tasks with a filled value.
type taskEcho struct {
	holdfast.TaskService
	asked chan any
}

func (e taskEcho) SubmitTask(_ context.Context, _ holdfast.Caller, in holdfast.SubmitTask) (holdfast.Task, error) {
	e.asked <- in
	return filled[holdfast.Task](), nil
}

func (e taskEcho) ListTasks(_ context.Context, _ holdfast.Caller, in holdfast.ListTasks) (holdfast.TaskPage, error) {
	e.asked <- in
	return filled[holdfast.TaskPage](), nil
}

func (e taskEcho) CancelTask(_ context.Context, _ holdfast.Caller, id holdfast.TaskID) (holdfast.Task, error) {
	e.asked <- id
	return filled[holdfast.Task](), nil
}

func (e taskEcho) StreamTaskOutput(_ context.Context, _ holdfast.Caller, in holdfast.TaskOutput, yield func(holdfast.OutputChunk) error) (holdfast.Task, error) {
	e.asked <- in
	return filled[holdfast.Task](), yield(holdfast.OutputChunk{Stream: holdfast.Stderr, Offset: 7, Data: []byte("x")})
}

func TestNoFieldOfATaskIsLostOnTheWayThereOrBack(t *testing.T) {
	e := taskEcho{asked: make(chan any, 1)}
	services := serve(t, rpc.Services{Tasks: e})
	ctx, nobody, task := t.Context(), holdfast.Caller{}, filled[holdfast.Task]()

	submit := filled[holdfast.SubmitTask]()
	got, err := services.Tasks.SubmitTask(ctx, nobody, submit)
	same(t, "Task", got, err, task)
	same[any](t, "SubmitTask", <-e.asked, nil, submit)

	list, page := filled[holdfast.ListTasks](), filled[holdfast.TaskPage]()
	page.Tasks[0].Env = nil // left out of lists
	gotPage, err := services.Tasks.ListTasks(ctx, nobody, list)
	same(t, "TaskPage", gotPage, err, page)
	same[any](t, "ListTasks", <-e.asked, nil, list)

	got, err = services.Tasks.CancelTask(ctx, nobody, "tk-1")
	same(t, "Task", got, err, task)
	same[any](t, "CancelTask", <-e.asked, nil, holdfast.TaskID("tk-1"))

	output, chunks := filled[holdfast.TaskOutput](), 0
	got, err = services.Tasks.StreamTaskOutput(ctx, nobody, output, func(c holdfast.OutputChunk) error {
		chunks++
		same(t, "OutputChunk", c, nil, holdfast.OutputChunk{Stream: holdfast.Stderr, Offset: 7, Data: []byte("x")})
		return nil
	})
	same(t, "Task", got, err, task)
	same[any](t, "TaskOutput", <-e.asked, nil, output)
	if chunks != 1 {
		t.Errorf("%d chunks", chunks)
	}
}
