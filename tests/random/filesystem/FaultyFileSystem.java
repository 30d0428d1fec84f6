import java.io.IOException;
import java.net.URI;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.util.Progressable;

/** The local file system under the scheme `faulty`, of which one call fails: before it is carried out, or after. */
public class FaultyFileSystem extends RawLocalFileSystem {
  private static int callsLeft = 0;
  private static boolean isCarriedOut = false;
  private static String failed = "";
  private static String counted = "";
  private static String within = "";

  /** Let the n-th call from now fail, once, of those of a name on paths that contain a text, of all if these are empty; 0 for none. */
  public static synchronized void arm(int n, String name, String inPath, boolean carriedOut) {
    callsLeft = n;
    counted = name;
    within = inPath;
    isCarriedOut = carriedOut;
    failed = "";
  }

  /** Return which call failed since the last `arm`; empty if none did. */
  public static synchronized String failed() {
    return failed;
  }

  private static synchronized boolean isNext(String call, Path path) {
    boolean isCounted = (counted.isEmpty() || counted.equals(call)) && path.toString().contains(within);
    if (!isCounted || callsLeft == 0 || --callsLeft > 0) {
      return false;
    }
    failed = (isCarriedOut ? "after " : "before ") + call + " " + path;
    return true;
  }

  private interface Call<T> {
    T make() throws IOException;
  }

  private static <T> T faulty(String name, Path path, Call<T> call) throws IOException {
    boolean isFailing = isNext(name, path);
    if (isFailing && !isCarriedOut) {
      throw new IOException("injected before " + name);
    }
    T result = call.make();
    if (isFailing) {
      if (result instanceof AutoCloseable) {
        try {
          ((AutoCloseable) result).close();
        } catch (Exception error) {
          throw new IOException(error);
        }
      }
      throw new IOException("injected after " + name);
    }
    return result;
  }

  @Override
  public String getScheme() {
    return "faulty";
  }

  @Override
  public URI getUri() {
    return URI.create("faulty:///");
  }

  @Override
  public FSDataInputStream open(Path path, int bufferSize) throws IOException {
    return faulty("open", path, () -> super.open(path, bufferSize));
  }

  @Override
  public FSDataOutputStream create(
      Path path, FsPermission permission, boolean overwrite, int size, short replication, long block, Progressable progress)
      throws IOException {
    return faulty("create", path, () -> super.create(path, permission, overwrite, size, replication, block, progress));
  }

  @Override
  public boolean rename(Path from, Path to) throws IOException {
    return faulty("rename", to, () -> super.rename(from, to));
  }

  @Override
  public boolean delete(Path path, boolean recursive) throws IOException {
    return faulty("delete", path, () -> super.delete(path, recursive));
  }

  @Override
  public boolean mkdirs(Path path, FsPermission permission) throws IOException {
    return faulty("mkdirs", path, () -> super.mkdirs(path, permission));
  }

  @Override
  public FileStatus[] listStatus(Path path) throws IOException {
    return faulty("listStatus", path, () -> super.listStatus(path));
  }

  @Override
  public FileStatus getFileStatus(Path path) throws IOException {
    return faulty("getFileStatus", path, () -> super.getFileStatus(path));
  }
}
