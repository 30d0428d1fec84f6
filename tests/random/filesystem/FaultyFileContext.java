import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.DelegateToFileSystem;

/** The same for Hadoop's `FileContext`, by which Delta's log store writes commits. */
public class FaultyFileContext extends DelegateToFileSystem {
  public FaultyFileContext(URI uri, Configuration conf) throws IOException, URISyntaxException {
    super(uri, new FaultyFileSystem(), conf, "faulty", false);
  }
}
