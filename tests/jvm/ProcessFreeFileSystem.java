import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermission;
import java.util.EnumSet;
import java.util.Set;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local file system, which without Hadoop's native library starts a process for each change of permissions and for each
 * look at what may be a link: a dozen for a commit. This one asks the JVM; else it is the same.
 */
public class ProcessFreeFileSystem extends LocalFileSystem {
  public ProcessFreeFileSystem() {
    super(new Raw());
  }

  static class Raw extends RawLocalFileSystem {
    @Override
    public FileStatus getFileLinkStatus(Path path) throws IOException {
      boolean isLink = Files.isSymbolicLink(pathToFile(path).toPath());
      return isLink ? super.getFileLinkStatus(path) : getFileStatus(path);
    }

    @Override
    public void setPermission(Path path, FsPermission permission) throws IOException {
      Set<PosixFilePermission> found = EnumSet.noneOf(PosixFilePermission.class);
      PosixFilePermission[] all = PosixFilePermission.values();
      for (int number = 0; number < all.length; number++) {
        // In the order of "rwxrwxrwx", of which the last is the lowest bit.
        if ((permission.toShort() >> (all.length - 1 - number) & 1) == 1) {
          found.add(all[number]);
        }
      }
      Files.setPosixFilePermissions(pathToFile(path).toPath(), found);
    }
  }
}
