package rpc

import (
	"context"

	"github.com/holdfast-dev/holdfast"
	v1 "github.com/holdfast-dev/holdfast/api/holdfast/v1"
	"github.com/holdfast-dev/holdfast/api/holdfast/v1/holdfastv1connect"
)

type keyHandler struct{ service holdfast.KeyService }

func (h keyHandler) CreateKey(ctx context.Context, req *v1.CreateKeyRequest) (*v1.CreateKeyResponse, error) {
	in := holdfast.CreateKey{Project: req.GetProject(), Name: req.GetName(), Role: word[holdfast.Role](v1.Key_Role_name, req.GetRole())}
	return answer(createdKeyToWire)(h.service.CreateKey(ctx, callerOf(ctx), in))
}

func (h keyHandler) ListKeys(ctx context.Context, req *v1.ListKeysRequest) (*v1.ListKeysResponse, error) {
	in := holdfast.ListKeys{Project: req.GetProject(), Revoked: req.GetRevoked(), PageSize: int(req.GetPageSize()), PageToken: req.GetPageToken()}
	return answer(keysToWire)(h.service.ListKeys(ctx, callerOf(ctx), in))
}

func (h keyHandler) RevokeKey(ctx context.Context, req *v1.RevokeKeyRequest) (*v1.Key, error) {
	return answer(keyToWire)(h.service.RevokeKey(ctx, callerOf(ctx), holdfast.KeyID(req.GetId())))
}

type keyDialer struct {
	client holdfastv1connect.KeyServiceClient
}

func (d keyDialer) CreateKey(ctx context.Context, _ holdfast.Caller, in holdfast.CreateKey) (holdfast.CreatedKey, error) {
	req := &v1.CreateKeyRequest{Project: in.Project, Name: in.Name, Role: enum[v1.Key_Role](v1.Key_Role_value, in.Role)}
	return call(ctx, "CreateKey", d.client.CreateKey, req, createdKeyFromWire)
}

func (d keyDialer) ListKeys(ctx context.Context, _ holdfast.Caller, in holdfast.ListKeys) (holdfast.KeyPage, error) {
	req := &v1.ListKeysRequest{Project: in.Project, Revoked: in.Revoked, PageSize: pageSize(in.PageSize), PageToken: in.PageToken}
	return call(ctx, "ListKeys", d.client.ListKeys, req, keysFromWire)
}

func (d keyDialer) RevokeKey(ctx context.Context, _ holdfast.Caller, id holdfast.KeyID) (holdfast.Key, error) {
	return call(ctx, "RevokeKey", d.client.RevokeKey, &v1.RevokeKeyRequest{Id: string(id)}, keyFromWire)
}

func keyToWire(k holdfast.Key) *v1.Key {
	return &v1.Key{
		Id: string(k.ID), Project: string(k.Project), Name: text(k.Name), Role: enum[v1.Key_Role](v1.Key_Role_value, k.Role),
		CreatedAt: stamp(k.CreatedAt), RevokedAt: stamp(k.RevokedAt),
	}
}

func keyFromWire(k *v1.Key) holdfast.Key {
	return holdfast.Key{
		ID: holdfast.KeyID(k.GetId()), Project: holdfast.ProjectID(k.GetProject()), Name: k.GetName(),
		Role: word[holdfast.Role](v1.Key_Role_name, k.GetRole()), CreatedAt: instant(k.GetCreatedAt()), RevokedAt: instant(k.GetRevokedAt()),
	}
}

func createdKeyToWire(k holdfast.CreatedKey) *v1.CreateKeyResponse {
	return &v1.CreateKeyResponse{Key: keyToWire(k.Key), Secret: k.Secret}
}

func createdKeyFromWire(k *v1.CreateKeyResponse) holdfast.CreatedKey {
	return holdfast.CreatedKey{Key: keyFromWire(k.GetKey()), Secret: k.GetSecret()}
}

func keysToWire(page holdfast.KeyPage) *v1.ListKeysResponse {
	return &v1.ListKeysResponse{Keys: each(page.Keys, keyToWire), NextPageToken: page.NextPageToken}
}

func keysFromWire(page *v1.ListKeysResponse) holdfast.KeyPage {
	return holdfast.KeyPage{Keys: each(page.GetKeys(), keyFromWire), NextPageToken: page.GetNextPageToken()}
}
