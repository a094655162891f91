package blob

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// partSize of an upload whose length is not known, in bytes. S3 takes 10,000
// parts, so that an object has at most 160 GB.
const partSize = 16 << 20

// bucket is a Store in an S3-compatible bucket.
type bucket struct {
	client *minio.Client
	name   string
	prefix string // "" or ending in '/'
}

func openS3(ctx context.Context, u *url.URL) (*bucket, error) {
	query := u.Query()
	for name := range query {
		if name != "endpoint" && name != "region" {
			return nil, fmt.Errorf("blob store s3://%s: unknown setting %q: endpoint and region are known", u.Host, name)
		}
	}
	endpoint, secure := "s3.amazonaws.com", true
	if given := query.Get("endpoint"); given != "" {
		e, err := url.Parse(given)
		if err != nil || e.Host == "" || e.Scheme != "http" && e.Scheme != "https" {
			return nil, fmt.Errorf("blob store s3://%s: endpoint %q is no http:// or https:// address", u.Host, given)
		}
		endpoint, secure = e.Host, e.Scheme == "https"
	}
	client, err := minio.New(endpoint, &minio.Options{
		Creds: credentials.NewChainCredentials([]credentials.Provider{
			&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}, &credentials.IAM{}}),
		Secure: secure, Region: query.Get("region"),
		MaxRetries: 1, // only the outermost caller retries (trap T22)
	})
	if err != nil {
		return nil, fmt.Errorf("blob store s3://%s: %w", u.Host, err)
	}
	b := &bucket{client: client, name: u.Host, prefix: strings.Trim(u.Path, "/")}
	if b.prefix != "" {
		if err := CheckKey(b.prefix); err != nil {
			return nil, fmt.Errorf("blob store s3://%s: prefix: %w", u.Host, err)
		}
		b.prefix += "/"
	}
	there, err := client.BucketExists(ctx, b.name)
	switch {
	case err != nil && minio.ToErrorResponse(err).StatusCode == 0:
		return b, nil // it does not answer: whoever opens it may have other things to do until it does
	case err != nil:
		return nil, fmt.Errorf("blob store s3://%s: %w", u.Host, err)
	case !there:
		return nil, fmt.Errorf("blob store s3://%s: there is no such bucket: make it first", u.Host)
	}
	return b, nil
}

func (b *bucket) Put(ctx context.Context, key string, r io.Reader) (Info, error) {
	if err := CheckKey(key); err != nil {
		return Info{}, err
	}
	m := measure(ctx, r)
	body, size := bufio.NewReader(m), int64(-1)
	if _, err := body.Peek(1); err == io.EOF { // servers refuse an upload in parts that has none
		size = 0
	}
	// An upload in parts gets its key when all of them are there, and only then.
	put, err := b.client.PutObject(ctx, b.name, b.prefix+key, body, size, minio.PutObjectOptions{
		PartSize: partSize, ContentType: "application/octet-stream",
		// Each part carries its MD5, which every server of this protocol checks; fewer know signatures of chunks.
		SendContentMd5: true, DisableContentSha256: true})
	if err != nil {
		return Info{}, fmt.Errorf("put %s: %w", key, err)
	}
	if put.Size != m.size {
		return Info{}, fmt.Errorf("put %s: %w: the store took %d of %d bytes", key, ErrMismatch, put.Size, m.size)
	}
	return Info{Key: key, Size: m.size, SHA256: m.sum(), Written: put.LastModified}, nil
}

func (b *bucket) Get(ctx context.Context, key string) (io.ReadCloser, Info, error) {
	if err := CheckKey(key); err != nil {
		return nil, Info{}, err
	}
	object, err := b.client.GetObject(ctx, b.name, b.prefix+key, minio.GetObjectOptions{})
	if err != nil {
		return nil, Info{}, b.notFound("get", key, err)
	}
	stat, err := object.Stat()
	if err != nil {
		if closeErr := object.Close(); closeErr != nil {
			err = fmt.Errorf("%w (and closing: %w)", err, closeErr)
		}
		return nil, Info{}, b.notFound("get", key, err)
	}
	return object, Info{Key: key, Size: stat.Size, Written: stat.LastModified}, nil
}

func (b *bucket) Stat(ctx context.Context, key string) (Info, error) {
	if err := CheckKey(key); err != nil {
		return Info{}, err
	}
	stat, err := b.client.StatObject(ctx, b.name, b.prefix+key, minio.StatObjectOptions{})
	if err != nil {
		return Info{}, b.notFound("stat", key, err)
	}
	return Info{Key: key, Size: stat.Size, Written: stat.LastModified}, nil
}

func (b *bucket) List(ctx context.Context, prefix, after string, limit int) (infos []Info, next string, err error) {
	ctx, cancel := context.WithCancel(ctx) // ends the listing after a page
	defer cancel()
	options := minio.ListObjectsOptions{Prefix: b.prefix + prefix, Recursive: true, MaxKeys: limit + 1}
	if after != "" {
		options.StartAfter = b.prefix + after
	}
	for o := range b.client.ListObjects(ctx, b.name, options) {
		if o.Err != nil {
			return nil, "", fmt.Errorf("list %q: %w", prefix, o.Err)
		}
		key := strings.TrimPrefix(o.Key, b.prefix)
		if key <= after { // a server may not know StartAfter
			continue
		}
		if len(infos) == limit {
			return infos, infos[limit-1].Key, nil
		}
		infos = append(infos, Info{Key: key, Size: o.Size, Written: o.LastModified})
	}
	return infos, "", nil
}

func (b *bucket) Delete(ctx context.Context, key string) error {
	if err := CheckKey(key); err != nil {
		return err
	}
	if err := b.client.RemoveObject(ctx, b.name, b.prefix+key, minio.RemoveObjectOptions{}); err != nil {
		return fmt.Errorf("delete %s: %w", key, err)
	}
	return nil
}

func (b *bucket) notFound(what, key string, err error) error {
	if minio.ToErrorResponse(err).StatusCode == http.StatusNotFound {
		return fmt.Errorf("%s %s: %w", what, key, ErrNotFound)
	}
	return fmt.Errorf("%s %s: %w", what, key, err)
}
