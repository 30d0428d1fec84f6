package streammerge;

import io.delta.storage.S3SingleDriverLogStore;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import java.util.Iterator;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * A log store for S3 that serves several drivers: a commit is created by a conditional PUT (If-None-Match), of which the
 * store lets one writer's through.
 *
 * <p>A PUT whose answer was lost is sent again by the client, and then refused because of itself. So what lies there decides: a
 * file with the very contents of this commit, which has an id of its own, is this commit.
 *
 * <p>A store that does not know the header lets every PUT through. So the first commit to each bucket is sent a second time, which
 * must be refused.
 */
public class ConditionalCreateLogStore extends S3SingleDriverLogStore {
  private static final String CONDITIONAL = "fs.option.create.conditional.overwrite";

  /** The buckets that were tried, and whether they refuse a second PUT. */
  private static final Map<String, Boolean> TRIED = new ConcurrentHashMap<>();

  public ConditionalCreateLogStore(Configuration conf) {
    super(conf);
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf) throws IOException {
    if (overwrite) {
      super.write(path, actions, true, conf);
      return;
    }
    ByteArrayOutputStream lines = new ByteArrayOutputStream();
    while (actions.hasNext()) {
      lines.write((actions.next() + "\n").getBytes(StandardCharsets.UTF_8));
    }
    byte[] content = lines.toByteArray();
    FileSystem system = path.getFileSystem(conf);
    String bucket = system.getUri().toString();
    if (Boolean.FALSE.equals(TRIED.get(bucket))) {
      throw ignored(bucket);
    }
    try {
      create(system, path, content);
      if (!TRIED.containsKey(bucket)) {
        tryAgain(bucket, system, path, content);
      }
    } catch (IOException failure) {
      if (!exists(system, path, failure)) {
        throw failure;
      }
      if (!isContent(system, path, content)) {
        FileAlreadyExistsException taken = new FileAlreadyExistsException(path.toString());
        taken.initCause(failure);
        throw taken;
      }
    }
  }

  /** Send a commit that is there already. A store that lets it through is left with the same contents. */
  private static void tryAgain(String bucket, FileSystem system, Path path, byte[] content) {
    try {
      create(system, path, content);
      TRIED.put(bucket, false);
    } catch (IOException failure) {
      for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
        if (cause.getClass().getSimpleName().equals("RemoteFileChangedException")) {
          TRIED.put(bucket, true);
        }
      }
    }
  }

  private static IOException ignored(String bucket) {
    return new IOException(
        bucket + " overwrites a file in spite of If-None-Match, so that the commits of several writers would be lost. Use a store that "
            + "knows the header, or another LogStore");
  }

  /** Create the file. By must() a file system that cannot do it conditionally refuses, instead of doing without. */
  private static void create(FileSystem system, Path path, byte[] content) throws IOException {
    FSDataOutputStreamBuilder<?, ?> builder = system.createFile(path).overwrite(false).recursive();
    builder.must(CONDITIONAL, true);
    try (FSDataOutputStream stream = builder.build()) {
      stream.write(content);
    }
  }

  private static boolean exists(FileSystem system, Path path, IOException failure) throws IOException {
    try {
      return system.exists(path);
    } catch (IOException unreadable) {
      failure.addSuppressed(unreadable);
      throw failure;
    }
  }

  private static boolean isContent(FileSystem system, Path path, byte[] content) throws IOException {
    try (InputStream stream = system.open(path)) {
      return Arrays.equals(stream.readNBytes(content.length + 1), content);
    }
  }
}
