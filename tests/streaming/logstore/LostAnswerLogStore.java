import io.delta.storage.LocalLogStore;
import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Iterator;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;

/**
 * A log store whose next commit goes wrong as the file `_fault` in the table's folder says. Its first line is the
 * fault; a second line is the path of a commit that another writer makes right after ours.
 */
public class LostAnswerLogStore extends LocalLogStore {
  public LostAnswerLogStore(Configuration conf) {
    super(conf);
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf) throws IOException {
    java.nio.file.Path log = Paths.get(path.getParent().toUri().getPath());
    java.nio.file.Path fault = log.resolveSibling("_fault");
    if (!path.getName().matches("\\d{20}\\.json") || !Files.exists(fault)) {
      super.write(path, actions, overwrite, conf);
      return;
    }
    List<String> lines = Files.readAllLines(fault);
    Files.delete(fault);
    if (lines.get(0).equals("not written")) {
      throw new IOException("the connection broke before the commit was written");
    }
    super.write(path, actions, overwrite, conf);
    if (lines.size() > 1) {
      long next = Long.parseLong(path.getName().substring(0, 20)) + 1;
      Files.copy(Paths.get(lines.get(1)), log.resolve(String.format("%020d.json", next)));
    }
    switch (lines.get(0)) {
      case "file already exists":
        throw new FileAlreadyExistsException(path.toString());
      case "unreadable":
        Files.createFile(log.resolveSibling("_unreadable"));
        throw new IOException("the connection broke after the commit was written");
      default:
        throw new IOException("the connection broke after the commit was written");
    }
  }

  @Override
  public Iterator<FileStatus> listFrom(Path path, Configuration conf) throws IOException {
    if (Files.exists(Paths.get(path.getParent().getParent().toUri().getPath(), "_unreadable"))) {
      throw new IOException("the connection is still broken");
    }
    return super.listFrom(path, conf);
  }
}
