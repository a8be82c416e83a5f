package fluvial.delta;

import io.delta.storage.S3SingleDriverLogStore;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.Iterator;
import java.util.Set;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.S3AFileSystem;
import software.amazon.awssdk.core.exception.SdkException;
import software.amazon.awssdk.core.sync.RequestBody;
import software.amazon.awssdk.services.s3.S3Client;
import software.amazon.awssdk.services.s3.model.DeleteObjectRequest;
import software.amazon.awssdk.services.s3.model.GetObjectRequest;
import software.amazon.awssdk.services.s3.model.PutObjectRequest;
import software.amazon.awssdk.services.s3.model.S3Exception;

/**
 * Delta's log on S3 for any number of drivers: a commit is put on the condition that there is no object of its name, so
 * that of two drivers at one version the second is told so.
 *
 * <p>https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html. Janino compiles it: no lambdas, and
 * no type arguments.
 */
public class ConditionalLogStore extends S3SingleDriverLogStore {
    private static final int PRECONDITION_FAILED = 412;
    private static final int CONFLICT = 409;
    private static final int ATTEMPTS_MAX = 10;
    /** Buckets whose store has been seen to keep the condition. */
    private static final Set TRIED = Collections.synchronizedSet(new HashSet());

    public ConditionalLogStore(Configuration configuration) {
        super(configuration);
    }

    public void write(Path path, Iterator actions, Boolean overwrite, Configuration configuration) throws IOException {
        FileSystem files = path.getFileSystem(configuration);
        if (overwrite.booleanValue() || !(files instanceof S3AFileSystem)) {
            super.write(path, actions, overwrite, configuration);
            return;
        }
        StringBuilder text = new StringBuilder();
        while (actions.hasNext()) {
            text.append((String) actions.next()).append('\n');
        }
        byte[] bytes = text.toString().getBytes(StandardCharsets.UTF_8);
        Path whole = files.makeQualified(path);
        String bucket = whole.toUri().getHost();
        String key = whole.toUri().getPath().substring(1);
        S3Client client = ((S3AFileSystem) files).getS3AInternals().getAmazonS3Client("a commit of Delta");
        try {
            requireConditions(client, bucket, key);
            if (!put(client, bucket, key, bytes)) {
                throw new FileAlreadyExistsException(path.toString());
            }
        } catch (SdkException error) {
            throw new IOException(path + " was not written: " + error.getMessage(), error);
        }
    }

    /** Put a new object; false where there is another one of its name. */
    private static boolean put(S3Client client, String bucket, String key, byte[] bytes) {
        PutObjectRequest request =
            (PutObjectRequest) PutObjectRequest.builder().bucket(bucket).key(key).ifNoneMatch("*").build();
        for (int attempt = 1;; attempt++) {
            try {
                client.putObject(request, RequestBody.fromBytes(bytes));
                return true;
            } catch (S3Exception refused) {
                if (refused.statusCode() == PRECONDITION_FAILED) {
                    // The client sends again when no answer comes: what is there may be what it sent first.
                    GetObjectRequest found =
                        (GetObjectRequest) GetObjectRequest.builder().bucket(bucket).key(key).build();
                    return Arrays.equals(client.getObjectAsBytes(found).asByteArray(), bytes);
                }
                // Two were on their way at once, and none was taken.
                if (refused.statusCode() != CONFLICT || attempt == ATTEMPTS_MAX) {
                    throw refused;
                }
            }
        }
    }

    /** Throw where the store takes an object whose condition does not hold. */
    private static void requireConditions(S3Client client, String bucket, String key) throws IOException {
        if (TRIED.contains(bucket)) {
            return;
        }
        String probe = key.substring(0, key.lastIndexOf('/') + 1) + ".conditional-" + UUID.randomUUID();
        boolean ignored;
        try {
            put(client, bucket, probe, new byte[] {1});
            ignored = put(client, bucket, probe, new byte[] {2});
        } finally {
            client.deleteObject(
                (DeleteObjectRequest) DeleteObjectRequest.builder().bucket(bucket).key(probe).build());
        }
        if (ignored) {
            throw new IOException(
                "the object store of " + bucket + " ignores If-None-Match, so that of two drivers one could replace "
                + "what the other has committed: keep the warehouse on a store with conditional writes");
        }
        TRIED.add(bucket);
    }
}
