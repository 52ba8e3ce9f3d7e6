"""Object stores with a common interface: `file://`, `s3://`, `az://`, `gs://`."""

from plumbline.stores.opening import open_store as open_store
from plumbline.stores.opening import presign as presign
from plumbline.stores.protocol import BucketMissingError as BucketMissingError
from plumbline.stores.protocol import ObjectExistsError as ObjectExistsError
from plumbline.stores.protocol import ObjectInfo as ObjectInfo
from plumbline.stores.protocol import ObjectMissingError as ObjectMissingError
from plumbline.stores.protocol import ObjectReader as ObjectReader
from plumbline.stores.protocol import PreconditionFailedError as PreconditionFailedError
from plumbline.stores.protocol import Store as Store
from plumbline.stores.protocol import StoreUnavailableError as StoreUnavailableError
from plumbline.stores.protocol import ensure_content as ensure_content
from plumbline.stores.protocol import ensure_object as ensure_object
from plumbline.stores.protocol import read_bytes as read_bytes
from plumbline.stores.retry import RetryingStore as RetryingStore
from plumbline.stores.retry import RetryPolicy as RetryPolicy
