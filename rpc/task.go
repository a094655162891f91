package rpc

import (
	"context"

	"connectrpc.com/connect"

	"github.com/holdfast-dev/holdfast"
	v1 "github.com/holdfast-dev/holdfast/api/holdfast/v1"
	"github.com/holdfast-dev/holdfast/api/holdfast/v1/holdfastv1connect"
)

type taskHandler struct{ service holdfast.TaskService }

func (h taskHandler) SubmitTask(ctx context.Context, req *v1.SubmitTaskRequest) (*v1.Task, error) {
	in, err := submitFromWire(req)
	if err != nil {
		return nil, err
	}
	return answer(taskToWire)(h.service.SubmitTask(ctx, callerOf(ctx), in))
}

func (h taskHandler) GetTask(ctx context.Context, req *v1.GetTaskRequest) (*v1.Task, error) {
	return answer(taskToWire)(h.service.GetTask(ctx, callerOf(ctx), holdfast.TaskID(req.GetId())))
}

func (h taskHandler) ListTasks(ctx context.Context, req *v1.ListTasksRequest) (*v1.ListTasksResponse, error) {
	in := holdfast.ListTasks{Session: holdfast.SessionID(req.GetSessionId()), PageSize: int(req.GetPageSize()), PageToken: req.GetPageToken(),
		States: each(req.GetStates(), func(s v1.Task_State) holdfast.TaskState { return word[holdfast.TaskState](v1.Task_State_name, s) })}
	return answer(tasksToWire)(h.service.ListTasks(ctx, callerOf(ctx), in))
}

func (h taskHandler) CancelTask(ctx context.Context, req *v1.CancelTaskRequest) (*v1.Task, error) {
	return answer(taskToWire)(h.service.CancelTask(ctx, callerOf(ctx), holdfast.TaskID(req.GetId())))
}

func (h taskHandler) StreamTaskOutput(ctx context.Context, req *v1.StreamTaskOutputRequest, stream *connect.ServerStream[v1.StreamTaskOutputResponse]) error {
	in := holdfast.TaskOutput{ID: holdfast.TaskID(req.GetId()), StdoutOffset: req.GetStdoutOffset(), StderrOffset: req.GetStderrOffset(), Follow: req.GetFollow()}
	task, err := h.service.StreamTaskOutput(ctx, callerOf(ctx), in, func(c holdfast.OutputChunk) error {
		return chunks(c, func(c *v1.OutputChunk) error {
			return stream.Send(&v1.StreamTaskOutputResponse{Event: &v1.StreamTaskOutputResponse_Chunk{Chunk: c}})
		})
	})
	if err != nil {
		return err
	}
	return stream.Send(&v1.StreamTaskOutputResponse{Event: &v1.StreamTaskOutputResponse_Task{Task: taskToWire(task)}})
}

type taskDialer struct {
	client holdfastv1connect.TaskServiceClient
}

func (d taskDialer) SubmitTask(ctx context.Context, _ holdfast.Caller, in holdfast.SubmitTask) (holdfast.Task, error) {
	req := &v1.SubmitTaskRequest{RequestId: in.RequestID, SessionId: string(in.Session), Command: in.Command, Args: in.Args, Cwd: in.Cwd,
		Env: in.Env, Limit: span(in.Limit)}
	return call(ctx, "SubmitTask", d.client.SubmitTask, req, taskFromWire)
}

func (d taskDialer) GetTask(ctx context.Context, _ holdfast.Caller, id holdfast.TaskID) (holdfast.Task, error) {
	return call(ctx, "GetTask", d.client.GetTask, &v1.GetTaskRequest{Id: string(id)}, taskFromWire)
}

func (d taskDialer) ListTasks(ctx context.Context, _ holdfast.Caller, in holdfast.ListTasks) (holdfast.TaskPage, error) {
	req := &v1.ListTasksRequest{SessionId: string(in.Session), PageSize: pageSize(in.PageSize), PageToken: in.PageToken,
		States: each(in.States, func(s holdfast.TaskState) v1.Task_State { return enum[v1.Task_State](v1.Task_State_value, s) })}
	return call(ctx, "ListTasks", d.client.ListTasks, req, tasksFromWire)
}

func (d taskDialer) CancelTask(ctx context.Context, _ holdfast.Caller, id holdfast.TaskID) (holdfast.Task, error) {
	return call(ctx, "CancelTask", d.client.CancelTask, &v1.CancelTaskRequest{Id: string(id)}, taskFromWire)
}

func (d taskDialer) StreamTaskOutput(ctx context.Context, _ holdfast.Caller, in holdfast.TaskOutput, yield func(holdfast.OutputChunk) error) (holdfast.Task, error) {
	req := &v1.StreamTaskOutputRequest{Id: string(in.ID), StdoutOffset: in.StdoutOffset, StderrOffset: in.StderrOffset, Follow: in.Follow}
	var last *v1.Task
	err := received(ctx, "StreamTaskOutput", opening(d.client.StreamTaskOutput, req), func(m *v1.StreamTaskOutputResponse) error {
		if c := m.GetChunk(); c != nil {
			return yield(chunkFromWire(c))
		}
		last = m.GetTask()
		return nil
	})
	if err == nil && last == nil {
		err = interrupted("StreamTaskOutput", "the task")
	}
	if err != nil {
		return holdfast.Task{}, err
	}
	return taskFromWire(last), nil
}
